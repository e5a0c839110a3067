/// Stretches of each way whose times are compared.
const ENOUGH: u32 = 5;
/// Micro-batches in a stretch, at most, with regions kept.
const LONGEST: usize = 16;

/// Batches with regions kept and recomputed in turn, so that other work on the device slows both. Compared are stretches of equal
/// cost: a batch, or a part of one that has many micro-batches. The fastest of each way counts, because other work makes a stretch
/// slower, never faster.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Trial {
    /// The cost of a stretch.
    stretch: usize,
    kept: Times,
    recomputed: Times,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Times {
    /// Of the stretch in progress.
    cost: usize,
    seconds: f64,
    /// The highest speed of a stretch, in units of cost per second.
    best: f64,
    stretches: u32,
}

impl Trial {
    /// For batches that cost `batch`, in micro-batches that cost `kept` with regions kept.
    pub(super) fn new(batch: usize, kept: usize) -> Self {
        Self {
            stretch: batch.min(kept.saturating_mul(LONGEST)),
            ..Self::default()
        }
    }

    /// A micro-batch took so long. Times arrive in order, but may arrive late.
    pub(super) fn time(&mut self, recomputes: bool, cost: usize, seconds: f64) {
        let times = match recomputes {
            true => &mut self.recomputed,
            false => &mut self.kept,
        };
        times.cost = times.cost.saturating_add(cost);
        times.seconds += seconds;
        if times.cost >= self.stretch {
            *times = Times {
                best: times.best.max(times.cost as f64 / times.seconds),
                stretches: times.stretches.saturating_add(1),
                ..Times::default()
            };
        }
    }

    /// The speed with recomputation, divided by that without, once enough times have arrived.
    pub(super) fn speed(&self) -> Option<f64> {
        let is_over = self.kept.stretches.min(self.recomputed.stretches) >= ENOUGH;
        is_over.then(|| self.recomputed.best / self.kept.best)
    }
}
