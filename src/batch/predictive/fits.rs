use super::shape::{Room, Shape};

/// How many times what the forward pass took for a sample the whole micro-batch may take: candle keeps all activations during
/// the backward pass and makes about three tensors for each gradient. A single wide layer takes 3.7 times, deep models less.
const BACKWARD: f64 = 4.;

impl Shape {
    /// The largest cost for which there is room, at least one sample's; `None` if nothing was measured.
    pub(super) fn fits(&self, room: Room) -> Option<usize> {
        let seen = self.model.largest_seen()?;
        let certain = self.model.largest_within(room.all, room.usable);
        let certain = certain.unwrap_or(0);
        if certain < seen {
            return Some(certain.max(self.each));
        }
        let careful = self.bounded_by_forward(certain, seen, room);
        // What is certain is enough to go on.
        match careful >= seen.saturating_add((seen / 4).max(self.each)) {
            true => Some(careful),
            false => Some(careful.max(self.next_to_try(seen, room))),
        }
    }

    /// What is certain by the line so far, as far as the forward pass confirms it. Small micro-batches may peak where the
    /// parameters' gradients dominate, larger ones elsewhere, so the line through the small ones may end; then it counts
    /// only for costs nearby.
    fn bounded_by_forward(&self, certain: usize, seen: usize, room: Room) -> usize {
        match self.fits_by_forward(seen, room) {
            Some(by_forward) if self.model.is_mostly_base() => {
                let near = seen.saturating_add((seen / 8).max(self.each));
                certain.min(by_forward.max(near))
            }
            _ => certain,
        }
    }

    /// A cost above the largest seen, at most twice as much, that likely fits: by the forward pass, or by the line so far if
    /// that is not known.
    fn next_to_try(&self, seen: usize, room: Room) -> usize {
        let by_forward = self.fits_by_forward(seen, room).unwrap_or(0);
        let next = match self.forward.largest_seen().is_some() && !self.model.is_single() {
            true => None,
            false => self.model.next_to_try(room.usable, self.each),
        };
        by_forward
            .min(seen.saturating_mul(2))
            .max(next.unwrap_or(0))
    }

    /// A cost above the largest seen for which there is room by what its forward pass took for each unit.
    fn fits_by_forward(&self, seen: usize, room: Room) -> Option<usize> {
        let forward = self.forward.slope_above()?;
        let left = room.usable.saturating_sub(self.model.upper_bound(seen)?);
        let more = (left as f64 / (forward * BACKWARD).max(1.)) as usize;
        Some(seen.saturating_add(more))
    }

    /// Whether `more` samples would likely fit, which is not certain only because `largest` samples were never seen.
    pub(super) fn may_fit(&self, largest: usize, more: usize, room: Room) -> bool {
        let largest = largest.saturating_mul(self.each);
        let is_new = self.model.largest_seen().is_some_and(|seen| seen < largest);
        let is_capped = self.pace.limit(largest) < largest || self.is_avoiding();
        let likely = self.model.predict(more.saturating_mul(self.each));
        is_new && !is_capped && likely.is_some_and(|likely| likely <= room.usable)
    }
}
