/// Batches of each way whose times are compared.
const ENOUGH: u32 = 5;

/// Batches with regions kept and recomputed in turn, so that other work on the device slows both. The fastest batch of each
/// counts: other work makes a batch slower, never faster.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Trial {
    /// The cost of a batch.
    batch: usize,
    kept: Times,
    recomputed: Times,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Times {
    /// Of the batch in progress.
    cost: usize,
    seconds: f64,
    /// The highest speed of a batch, in units of cost per second.
    best: f64,
    batches: u32,
}

impl Trial {
    pub(super) fn new(batch: usize) -> Self {
        Self {
            batch,
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
        if times.cost >= self.batch {
            *times = Times {
                best: times.best.max(times.cost as f64 / times.seconds),
                batches: times.batches.saturating_add(1),
                ..Times::default()
            };
        }
    }

    /// The speed with recomputation, divided by that without, once enough times have arrived.
    pub(super) fn speed(&self) -> Option<f64> {
        let is_over = self.kept.batches.min(self.recomputed.batches) >= ENOUGH;
        is_over.then(|| self.recomputed.best / self.kept.best)
    }
}
