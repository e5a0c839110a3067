use crate::batch::MemoryModel;

/// Part of the room that is left free unless another one is asked for.
const MARGIN: f64 = 0.01;

/// The margin is left free where a batch has more parts than this: one fewer would not gain a sixteenth.
const MOST_PARTS: usize = 16;

/// What a micro-batch may take, in bytes above what is in use before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// All that limit and device leave.
    pub(super) all: u64,
    /// `all` less the margin.
    pub(super) usable: u64,
    /// `all`, or `usable` if the margin was asked for.
    tight: u64,
}

impl Room {
    pub(super) fn new(all: u64, margin: Option<f64>) -> Self {
        let usable = (all as f64 * (1. - margin.unwrap_or(MARGIN))) as u64;
        let tight = margin.map_or(all, |_| usable);
        Self { all, usable, tight }
    }

    /// The largest cost that leaves the margin free, at least one sample's; `None` if nothing was measured. If what is certain
    /// does not lead on, a larger one that likely fits.
    pub(super) fn fits(&self, model: &MemoryModel, each: usize) -> Option<usize> {
        let seen = model.largest_seen()?;
        let certain = model.largest_within(self.all, self.usable);
        let certain = certain.unwrap_or(0).max(each);
        Some(match certain < seen.saturating_add((seen / 4).max(each)) {
            true => certain.max(model.next_to_try(self.usable, each).unwrap_or(0)),
            false => certain,
        })
    }

    /// Whether a cost likely leaves the margin free.
    pub(super) fn is_enough(&self, model: &MemoryModel, cost: usize) -> bool {
        (model.predict(cost)).is_some_and(|likely| likely <= self.usable)
    }

    /// Whether a cost that may not leave the margin free likely fits all the same, because predictions have been exact. Never
    /// where the margin was asked for.
    pub(super) fn is_just_enough(&self, model: &MemoryModel, cost: usize) -> bool {
        let known = model.predict(cost).zip(model.spread());
        known.is_some_and(|(likely, spread)| {
            self.tight > self.usable && likely as f64 * (1. + spread) <= self.tight as f64
        })
    }
}

/// The samples in a part if a batch had one part fewer than with at most `largest` in each; `None` where that gains little.
pub(super) fn with_one_part_fewer(samples: usize, largest: usize) -> Option<usize> {
    let parts = samples.div_ceil(largest.max(1));
    let gains = (2..=MOST_PARTS).contains(&parts);
    gains.then(|| samples.div_ceil(parts - 1))
}
