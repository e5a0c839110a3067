use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use candle_core::utils::barrier_pool;

use super::real::Real;
use super::team;

/// Threads share tensors with at least this many elements, as in candle.
pub const SHARED: usize = 64 * 1024;
/// Elements that a thread takes at a time, as in candle.
pub const CHUNK: usize = 16 * 1024;
/// Elements that are converted at a time. They fit into the first cache with their gradient and state.
pub const BLOCK: usize = 256;

/// Whether several threads share a parameter of this many elements.
pub fn is_shared(len: usize) -> bool {
    len >= SHARED
}

/// The threads that do the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Caller,
    /// candle's own threads, which stay awake between its operations. The work must not take candle's locks.
    Candle,
    Team,
}

/// Distributes `units` units of work. `next` splits the next unit off the rest, so that nothing is allocated. Returns false if a thread
/// of the team has panicked. A panic of candle's threads is passed on to the caller.
pub fn share<R: Send, U>(
    by: By,
    units: usize,
    rest: R,
    next: impl Fn(&mut R) -> Option<U> + Sync,
    work: impl Fn(U) + Sync,
) -> bool {
    // parking_lot's mutex would allocate when a thread waits for the first time.
    let rest = Mutex::new(rest);
    let run = |count: usize| {
        for _ in 0..count {
            let unit = next(&mut rest.lock().unwrap_or_else(PoisonError::into_inner));
            let Some(unit) = unit else {
                return;
            };
            work(unit);
        }
    };
    match by {
        By::Team if units > 1 => return team::together(&|| run(units)),
        By::Candle if units > 1 => {
            barrier_pool().execute_chunked(units, |range| run(range.len()));
        }
        _ => run(units),
    }
    true
}

/// Distributes stretches of a slice, each with the index of its first element.
pub fn in_stretches<T: Send>(
    slice: &mut [T],
    stretch: usize,
    is_shared: bool,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    if !is_shared {
        return work(0, slice);
    }
    let units = slice.len().div_ceil(stretch);
    let next = |(start, rest): &mut (usize, _)| {
        let (at, head) = (*start, take(rest, stretch));
        *start += head.len();
        Some((at, head))
    };
    let work = |(start, slice): (usize, &mut [T])| work(start, slice);
    share(By::Candle, units, (0, slice), next, work);
}

/// Returns the sum of what `part` returns for each chunk of `0..len`, always added in the same order.
pub fn sum(
    partials: &mut [f64],
    len: usize,
    is_shared: bool,
    part: impl Fn(Range<usize>) -> f64 + Sync,
) -> f64 {
    let partials = partials.get_mut(..len.div_ceil(CHUNK)).unwrap_or_default();
    in_stretches(partials, 1, is_shared, |first, partials| {
        for (index, partial) in (first..).zip(partials) {
            let start = index * CHUNK;
            *partial = part(start..len.min(start + CHUNK));
        }
    });
    partials.iter().sum()
}

/// Splits a range into blocks that fit on the stack, and runs `work` with the start and the buffer of each.
pub fn in_blocks<C: Real>(range: Range<usize>, mut work: impl FnMut(usize, &mut [C])) {
    let mut block = [C::default(); BLOCK];
    let mut start = range.start;
    while let Some(block) = block.get_mut(..range.end.saturating_sub(start).min(BLOCK)) {
        if block.is_empty() {
            return;
        }
        work(start, block);
        start += block.len();
    }
}

/// The sum of squares, in f64 along eight lanes, so that it can be vectorised.
pub fn sum_of_squares<C: Real>(values: &[C]) -> f64 {
    let mut lanes = [0.; 8];
    let chunks = values.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value.to_f64() * value.to_f64();
        }
    }
    let rest = rest.iter().map(|value| value.to_f64() * value.to_f64());
    lanes.iter().sum::<f64>() + rest.sum::<f64>()
}

/// Splits off the first `count` elements, or all if there are fewer.
pub fn take<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    let count = count.min(slice.len());
    let (head, tail) = std::mem::take(slice).split_at_mut(count);
    *slice = tail;
    head
}
