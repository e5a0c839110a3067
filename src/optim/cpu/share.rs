use std::ops::Range;
use std::sync::Mutex;

use candle_core::utils::barrier_pool;

use super::real::Real;
use super::team::lock;

/// Threads share tensors with at least this many elements, as in candle.
pub const SHARED: usize = 64 * 1024;
/// Elements that a thread takes at a time, as in candle.
pub const CHUNK: usize = 16 * 1024;
/// Elements that are converted at a time: they fit into the first cache with their gradient and state.
pub const BLOCK: usize = 256;

pub fn is_shared(len: usize) -> bool {
    len >= SHARED
}

/// Calls `work` `units` times on candle's own threads, which stay awake between its operations; it must not take candle's locks. A panic
/// of a thread is passed on to the caller. Nothing is allocated.
pub fn share(units: usize, work: &(dyn Fn() + Sync)) {
    let run = |units: Range<usize>| units.for_each(|_| work());
    match units {
        0 | 1 => run(0..units),
        _ => barrier_pool().execute_chunked(units, run),
    }
}

/// Distributes stretches of a slice, each with the index of its first element.
pub fn in_stretches<T: Send>(
    slice: &mut [T],
    stretch: usize,
    is_shared: bool,
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    if !is_shared {
        return work(0, slice);
    }
    let units = slice.len().div_ceil(stretch);
    // parking_lot's mutex would allocate when a thread waits for the first time.
    let rest = Mutex::new((0, slice));
    share(units, &|| {
        let mut guard = lock(&rest);
        let (next, rest) = &mut *guard;
        let (start, head) = (*next, take(rest, stretch));
        *next += head.len();
        drop(guard);
        work(start, head);
    });
}

/// Returns the sum of the squares of `len` values that `read` fetches from an index on, always added in the same order.
pub fn squares<C: Real>(
    partials: &mut [f64],
    len: usize,
    read: &(dyn Fn(usize, &mut [C]) + Sync),
) -> f64 {
    let partials = partials.get_mut(..len.div_ceil(CHUNK)).unwrap_or_default();
    in_stretches(partials, 1, is_shared(len), &|first, partials| {
        for (index, partial) in (first..).zip(partials) {
            let start = index * CHUNK;
            *partial = squares_in(start..len.min(start + CHUNK), read);
        }
    });
    partials.iter().sum()
}

pub fn squares_in<C: Real>(range: Range<usize>, read: &dyn Fn(usize, &mut [C])) -> f64 {
    let mut total = 0.;
    in_blocks(range, &mut |start, block| {
        read(start, block);
        total += sum_of_squares(block);
    });
    total
}

/// Splits a range into blocks that fit on the stack, and runs `work` with the start and the buffer of each.
pub fn in_blocks<C: Real>(range: Range<usize>, work: &mut dyn FnMut(usize, &mut [C])) {
    let mut block = [C::default(); BLOCK];
    for start in range.clone().step_by(BLOCK) {
        let count = (range.end - start).min(BLOCK);
        work(start, block.get_mut(..count).unwrap_or_default());
    }
}

/// The sum of squares, in f64 along eight lanes, so that it can be vectorised.
fn sum_of_squares<C: Real>(values: &[C]) -> f64 {
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
