use super::ceiling::Ceiling;
use super::pace::Pace;
use crate::batch::{Completed, MemoryModel};

/// A larger size is used only where it is larger by more than one part in so many, and by more than twice the scatter: what use and
/// peaks sway by is no reason.
const WORTHWHILE: usize = 256;

/// How many times what the forward pass took for a sample the whole may take for it: candle keeps all activations while it
/// goes back, and makes some three tensors of each gradient. A single wide layer takes 3.7 times, deep models less.
const BACKWARD: f64 = 4.;

/// What a micro-batch may take, in bytes above what is in use before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// All that limit and device leave.
    pub(super) all: u64,
    /// That less the margin.
    pub(super) usable: u64,
}

/// How a micro-batch took more than there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    /// It went over a soft limit and was finished: what it took is known.
    Soft,
    /// It failed.
    Hard,
    /// It failed for a cause that goes by itself.
    Passing,
}

/// All that is known of samples of one shape. Sizes are costs: samples times [`each`](Self::each).
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Regime {
    /// The cost of one sample, as it was last.
    pub(super) each: usize,
    pub(super) model: MemoryModel,
    /// The same until the forward pass is over.
    pub(super) forward: MemoryModel,
    /// The largest cost to use; `None` for the whole batch.
    pub(super) cap: Option<usize>,
    /// The largest that has gone well, since the last failure below it.
    pub(super) proven: usize,
    pub(super) ceiling: Option<Ceiling>,
    pub(super) pace: Pace,
}

impl Regime {
    pub(super) fn new(each: usize) -> Self {
        Self {
            each,
            ..Self::default()
        }
    }

    /// Whether nothing has happened to it yet.
    pub(super) fn is_blank(&self) -> bool {
        *self == Self::new(self.each)
    }

    /// The largest size in use, in samples.
    pub(super) fn samples(&self) -> Option<usize> {
        let cost = self.pace.limit(self.cap?);
        Some((cost / self.each).max(1))
    }

    /// The largest cost for which there is room, at least one sample's; `None` where nothing was measured.
    pub(super) fn fits(&self, room: Room) -> Option<usize> {
        let seen = self.model.largest_seen()?;
        let fits = self.model.largest_within(room.all, room.usable);
        let fits = fits.unwrap_or(0);
        let fits = match self.fits_by_forward(seen, room) {
            Some(_) if fits < seen => fits,
            // Small micro-batches peak where the gradients of the parameters are most of it, large ones elsewhere: the line through
            // the small ones may end, and only what lies near is told by it.
            Some(by_forward) => {
                let near = seen + (seen / 8).max(self.each);
                let fits = match self.model.is_mostly_base() {
                    true => fits.min(by_forward.max(near)),
                    false => fits,
                };
                fits.max(by_forward.min(seen.saturating_mul(2)))
            }
            None => fits,
        };
        Some(fits.max(self.each))
    }

    /// A cost above the largest seen for which there is room by what its forward pass took. Where the gradients of the parameters
    /// are most of a small micro-batch, reckoning in proportion to that would never find room for a larger one.
    fn fits_by_forward(&self, seen: usize, room: Room) -> Option<usize> {
        let forward = self.forward.predict(seen)?.most as f64 / seen as f64;
        let left = room.usable.saturating_sub(self.model.predict(seen)?.most);
        let more = (left as f64 / (forward * BACKWARD).max(1.)) as usize;
        Some(seen.saturating_add(more))
    }

    /// Whether `more` samples would likely fit, which is not certain because as many as `largest` were never seen.
    pub(super) fn may_fit(&self, largest: usize, more: usize, room: Room) -> bool {
        let largest = largest.saturating_mul(self.each);
        let is_new = self.model.largest_seen().is_some_and(|seen| seen < largest);
        let is_capped = self.pace.limit(largest) < largest || self.ceiling.is_some();
        let likely = self.model.predict(more.saturating_mul(self.each));
        is_new && !is_capped && likely.is_some_and(|likely| likely.bytes <= room.usable)
    }

    /// Learns what a micro-batch took.
    pub(super) fn learn(&mut self, cost: usize, completed: &Completed) {
        let Some(before) = completed.before else {
            return;
        };
        let own = |peak: Option<u64>| peak.map(|peak| peak.saturating_sub(before));
        for (model, bytes) in [
            (&mut self.model, own(completed.peak)),
            (&mut self.forward, own(completed.forward_peak)),
        ] {
            if let Some(bytes) = bytes {
                // The cost of at least one sample is never 0.
                let _ = model.observe(cost, bytes);
            }
        }
    }

    /// A micro-batch went well, whatever it took.
    pub(super) fn succeeded(&mut self, cost: usize, room: Option<Room>) {
        self.proven = self.proven.max(cost);
        match &mut self.ceiling {
            Some(ceiling) if cost >= ceiling.cost => self.ceiling = None,
            Some(ceiling) => ceiling.succeeded(),
            None => {}
        }
        self.refit(room);
    }

    /// Goes to the size that fits by all that is known now: down where the present one does not, up where a larger one
    /// does.
    pub(super) fn refit(&mut self, room: Option<Room>) {
        let bytes = room.map(|room| room.all);
        self.ceiling = self.ceiling.filter(|ceiling| !ceiling.is_raised(bytes));
        let fits = match room {
            Some(room) => match self.fits(room) {
                Some(fits) => fits,
                None => return, // the first micro-batch is to tell
            },
            // Without numbers, after what had failed went well: no leap.
            None => self.cap.map_or(usize::MAX, |cap| cap.saturating_mul(2)),
        };
        let cap = self.cap.unwrap_or(usize::MAX);
        // Down only where the most likely need is more than there is: margin and scatter are what lies between up and down.
        let likely = self.model.predict(cap).map(|prediction| prediction.bytes);
        if likely
            .zip(bytes)
            .is_some_and(|(likely, room)| likely > room)
        {
            self.set(cap.min(fits));
            return;
        }
        let allowed = match &self.ceiling {
            Some(ceiling) => fits.min(ceiling.allows(cap)),
            None => fits,
        };
        let sways = (2. * self.model.scatter() * cap as f64) as usize;
        let is_worthwhile = allowed.saturating_sub(cap) > sways.max(cap / WORTHWHILE);
        if is_worthwhile {
            if let Some(ceiling) = &mut self.ceiling {
                ceiling.restart();
            }
            self.set(allowed);
        }
    }

    /// A micro-batch of this cost did not fit, or took more than it may.
    pub(super) fn exceeded(&mut self, cost: usize, room: Option<Room>, excess: Excess) {
        if cost <= self.proven {
            self.proven = 0;
        }
        let fits = room.and_then(|room| self.fits(room));
        // Where it failed, the prediction has to explain that with something to spare.
        let explained = match excess {
            Excess::Soft => cost,
            Excess::Hard | Excess::Passing => cost - cost / 16,
        };
        let next = match fits {
            Some(fits) if fits < explained => fits,
            _ => {
                let bytes = room.map(|room| room.all);
                let is_passing = excess == Excess::Passing;
                self.ceiling = Some(Ceiling::new(cost, bytes, is_passing, self.ceiling));
                match self.proven >= cost / 2 {
                    true => self.proven,
                    false => cost / 2,
                }
            }
        };
        self.set(next.max(self.each));
    }

    pub(super) fn set(&mut self, cap: usize) {
        // Whole samples, so that what is compared is what is run.
        let cap = cap - cap % self.each;
        self.cap = (cap < usize::MAX - self.each).then_some(cap);
        self.pace.follow(cap);
    }
}
