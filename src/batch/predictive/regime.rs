use super::ceiling::Ceiling;
use super::pace::Pace;
use crate::batch::{Completed, MOST_COST, MemoryModel};

/// A larger size is used only where it is larger by more than one part in so many, and by more than twice the scatter: what
/// use and peaks sway by is no reason.
const WORTHWHILE: usize = 256;

/// A first sample that takes so many times what an earlier run has learned is one of another model.
const ANOTHER: f64 = 2.;

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
    /// The cost of the present batch.
    pub(super) batch: usize,
    pub(super) model: MemoryModel,
    /// The same until the forward pass is over.
    pub(super) forward: MemoryModel,
    /// The largest cost to use; `None` for the whole batch.
    pub(super) cap: Option<usize>,
    /// The largest that has gone well, since the last failure below it.
    pub(super) proven: usize,
    pub(super) ceiling: Option<Ceiling>,
    /// The last ceiling, if more room has come since, or it has gone well now, until that has gone well for long: a failure
    /// that follows is one more in a row.
    pub(super) lifted: Option<Ceiling>,
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
        let blank = Self {
            batch: self.batch,
            ..Self::new(self.each)
        };
        *self == blank
    }

    /// Begins anew with samples of the same cost.
    pub(super) fn forget(&mut self, samples: usize) {
        *self = Self::new(self.each);
        self.begin(self.each, samples);
    }

    /// A batch begins of so many samples, each of which costs so much.
    pub(super) fn begin(&mut self, each: usize, samples: usize) {
        self.each = each;
        self.batch = self.cost(samples);
        self.follow();
    }

    /// Whether anything has gone well or failed, measured or not.
    pub(super) fn has_run(&self) -> bool {
        self.proven > 0 || self.ceiling.is_some()
    }

    pub(super) fn cost(&self, samples: usize) -> usize {
        samples.max(1).saturating_mul(self.each).min(MOST_COST)
    }

    /// The largest size in use, in samples.
    pub(super) fn samples(&self) -> Option<usize> {
        let cost = self.pace.limit(self.cap?);
        Some((cost / self.each).max(1))
    }

    /// Learns what a micro-batch took.
    pub(super) fn learn(&mut self, cost: usize, completed: &Completed) {
        for (model, bytes) in [
            (&mut self.model, own(completed.peak, completed.before)),
            (
                &mut self.forward,
                own(completed.forward_peak, completed.before),
            ),
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
        let has_fitted = |ceiling: &Ceiling| cost >= ceiling.cost;
        if let Some(fitted) = self.ceiling.take_if(|ceiling| has_fitted(ceiling)) {
            self.lift(fitted);
        }
        match (&mut self.ceiling, &mut self.lifted) {
            (Some(ceiling), _) => ceiling.succeeded(),
            (None, Some(lifted)) if has_fitted(lifted) => lifted.succeeded(),
            _ => {}
        }
        self.lifted = self.lifted.filter(|lifted| !lifted.is_over());
        self.refit(room);
    }

    /// Goes to the size that fits by all that is known now: down where the present one does not, up where a larger one
    /// does.
    pub(super) fn refit(&mut self, room: Option<Room>) {
        let bytes = room.map(|room| room.all);
        if let Some(raised) = self.ceiling.filter(|ceiling| ceiling.is_raised(bytes)) {
            self.ceiling = None;
            self.lift(raised);
        }
        let fits = match room.map(|room| self.fits(room)) {
            Some(Some(fits)) => fits,
            Some(None) if !self.has_run() => return, // the first micro-batch is to tell
            // Without numbers, after what had failed went well: no leap.
            _ => self.cap.map_or(usize::MAX, |cap| cap.saturating_mul(2)),
        };
        let cap = self.cap.unwrap_or(usize::MAX);
        // Down only where more is needed than there is, with what peaks mostly sway by: the rest of margin and scatter lies
        // between up and down.
        let sway = 1. + self.model.scatter();
        let likely = self
            .model
            .predict(cap)
            .map(|prediction| prediction.bytes as f64 * sway);
        if (likely.zip(bytes)).is_some_and(|(likely, room)| likely > room as f64) {
            self.set(cap.min(fits));
            return;
        }
        let allowed = match &self.ceiling {
            Some(ceiling) => fits.min(ceiling.allows(cap, self.each)),
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

    /// A micro-batch of this cost did not fit, or took more than it may: `took` bytes, where that is known.
    pub(super) fn exceeded(
        &mut self,
        cost: usize,
        took: Option<u64>,
        room: Option<Room>,
        excess: Excess,
    ) {
        let was_proven = cost <= self.proven;
        if was_proven {
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
                let before = self.ceiling.or(self.lifted.take());
                self.ceiling = Some(Ceiling::new(cost, bytes, is_passing, before));
                match () {
                    // Where bytes are counted, what has gone well before fails by little, at first.
                    () if was_proven && room.is_some() => cost - cost / 8,
                    () if self.proven >= cost / 2 => self.proven,
                    () => cost / 2,
                }
            }
        };
        // What it took is the best witness: the same for each unit, or less, is what a smaller one takes.
        let measured = took.zip(room).filter(|(took, room)| *took > room.all);
        let measured = measured.map_or(usize::MAX, |(took, room)| {
            (cost as f64 * (room.usable as f64 / took as f64)) as usize
        });
        self.set(next.min(measured).min(cost - 1));
    }

    fn lift(&mut self, mut ceiling: Ceiling) {
        ceiling.restart();
        self.lifted = Some(ceiling);
    }

    /// Whether a micro-batch took so much more than the line says that an earlier run must have learned it of another
    /// model.
    pub(super) fn is_another(&self, cost: usize, took: u64) -> bool {
        let line = self.model.base().zip(self.model.slope());
        let expected = line.map(|(base, slope)| base as f64 + slope * cost as f64);
        expected.is_some_and(|expected| took as f64 > expected * ANOTHER)
    }

    pub(super) fn set(&mut self, cap: usize) {
        // Whole samples, at least one, so that what is compared is what is run.
        let cap = (cap - cap % self.each).max(self.each);
        self.cap = (cap < MOST_COST).then_some(cap);
        self.follow();
    }

    /// Tells the pace what is run now if it does not choose.
    fn follow(&mut self) {
        let parts = self.batch.div_ceil(self.cap.unwrap_or(MOST_COST)).max(1);
        self.pace.follow(self.batch.div_ceil(parts));
    }
}

/// What a micro-batch took above what was in use before it.
pub(super) fn own(peak: Option<u64>, before: Option<u64>) -> Option<u64> {
    Some(peak?.saturating_sub(before?))
}
