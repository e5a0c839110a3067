/// Parts are taken away one by one, or this part of them where there are many.
const FEWER: usize = 20;
/// Micro-batches between two probes: this many batches, less one for each doubling of the parts.
const BATCHES: usize = 11;
const MOST_WAIT: usize = 4096;
/// The same after a failure that other users of the memory caused, and before the first probe.
const PASSING_WAIT: usize = 16;
const FIRST_WAIT: usize = 32;

/// When to try a larger size where memory is not measured: nothing but trying shows that room has come back.
///
/// A failure is followed by a wait, then by one micro-batch of the next larger size, the probe. The wait is bounded, so that
/// more room is found within a few batches however long it was small: 18 micro-batches where a batch has 2 parts, 32 for
/// 4, 56 for 8, at most 4,096. If the probe fails, the wait begins again; failed probes thus cost at most a ninth of the work
/// with 2 parts, a twenty-fourth with 4, and less with more. If it succeeds, each following micro-batch takes the next
/// larger size until one fails. No step on the way skips more than 5 %, so that failure is the only one and the size before
/// it is at least 0.95 of what fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Probing {
    /// Micro-batches until the next probe.
    wait: usize,
    /// How often a probe has found more room. A shape that has not failed since then keeps growing.
    found: u32,
}

impl Default for Probing {
    fn default() -> Self {
        Self {
            wait: FIRST_WAIT,
            found: 0,
        }
    }
}

impl Probing {
    /// Returns whether a shape may try a larger size whose last failure came after the `failed_at`-th find.
    pub(super) fn is_due(&self, failed_at: u32) -> bool {
        failed_at < self.found || self.wait == 0
    }

    /// The value of `failed_at` for a shape that fails, or begins, now.
    pub(super) fn found(&self) -> u32 {
        self.found
    }

    /// A micro-batch went well.
    pub(super) fn advance(&mut self) {
        self.wait = self.wait.saturating_sub(1);
    }

    /// A probe went well.
    pub(super) fn find(&mut self, failed_at: u32) {
        if failed_at == self.found {
            self.found = self.found.saturating_add(1);
        }
    }

    /// A micro-batch failed, and a batch has `parts` parts from now on.
    pub(super) fn restart(&mut self, parts: usize, is_passing: bool) {
        let batches = BATCHES.saturating_sub(parts.checked_ilog2().unwrap_or(0) as usize + 1);
        let wait = parts.saturating_mul(batches.max(1)).min(MOST_WAIT);
        self.wait = match is_passing {
            true => wait.min(PASSING_WAIT),
            false => wait,
        };
    }
}

/// The next larger size, in samples, for a batch of `samples` that is cut into parts of at most `size`; `None` if that is
/// the whole batch.
pub(super) fn next_larger(samples: usize, size: usize) -> Option<usize> {
    let parts = samples.div_ceil(size.max(1));
    let fewer = parts - (parts / FEWER).max(1).min(parts);
    (fewer > 0).then(|| samples.div_ceil(fewer))
}
