//! When to try a larger size where memory is not measured: nothing but trying shows that room has come back.
//!
//! A failure is followed by a wait, then by one micro-batch of the next larger size, the probe. The wait is bounded, so that
//! more room is found within a few batches however long it was small: 18 micro-batches where a batch has 2 parts, 32 for 4,
//! 56 for 8, at most 4,096. If the probe fails, the wait begins again; failed probes thus cost at most a ninth of the work
//! with 2 parts, a twenty-fourth with 4, and less with more. If it succeeds, each following micro-batch takes the next larger
//! size until one fails. No step on the way skips more than 5 %, so that failure is the only one and the size before it is at
//! least 0.95 of what fits.

/// Parts are taken away one by one, or this part of them where there are many.
const FEWER: usize = 20;
/// Batches between two probes, less one for each doubling of the parts, and the least; as micro-batches at most this many.
const BATCHES: usize = 11;
const LEAST_BATCHES: usize = 4;
const MOST_WAIT: usize = 4096;
/// The same after a failure that other users of the memory caused.
const PASSING_WAIT: usize = 16;
/// Micro-batches before the first probe.
pub(super) const FIRST_WAIT: usize = 32;

/// Micro-batches between a failure, after which a batch has `parts` parts, and the next probe.
pub(super) fn wait(parts: usize, is_passing: bool) -> usize {
    let doublings = parts.checked_ilog2().unwrap_or(0) as usize;
    let batches = BATCHES.saturating_sub(doublings + 1).max(LEAST_BATCHES);
    let most = if is_passing { PASSING_WAIT } else { MOST_WAIT };
    parts.saturating_mul(batches).min(most)
}

/// The next larger size, in samples, for a batch of `samples` that is cut into parts of at most `size`; `None` if that is
/// the whole batch.
pub(super) fn next_larger(samples: usize, size: usize) -> Option<usize> {
    let parts = samples.div_ceil(size.max(1));
    let fewer = parts - (parts / FEWER).max(1).min(parts);
    (fewer > 0).then(|| samples.div_ceil(fewer))
}
