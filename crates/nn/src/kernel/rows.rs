//! Rows shared among rayon's threads.

use candle_core::Result;
use parking_lot::Mutex;
use rayon::prelude::*;

use super::Number;

/// Elements that one thread takes at a time. Less is not worth handing over.
const AT_ONCE: usize = 1 << 13;

/// Number of rows of `width` elements that one thread takes at a time. It does not depend on the number of threads, so neither do
/// sums over these groups of rows.
pub fn rows_at_once(width: usize) -> usize {
    (AT_ONCE / width.max(1)).max(1)
}

/// Number of rows of `width` elements that are summed together, before these sums are added up. It does not depend on the number of
/// threads, so neither do the sums.
pub fn rows_of_part(rows: usize, width: usize) -> usize {
    const MOST_PARTS: usize = 64;
    rows_at_once(width).max(rows.div_ceil(MOST_PARTS))
}

/// Calls `work` for groups of rows of `width` elements, with the number of the group's first row and its elements, on all threads.
pub fn by_rows<T: Send>(
    out: &mut [T],
    width: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) -> Result<()> {
    let rows = rows_at_once(width);
    let groups = out.chunks_mut((rows * width).max(1)).collect();
    on_all_threads(groups, &|group, out| {
        work(group * rows, out);
        Ok(())
    })
}

/// Calls `work` for each item, with its number, on all threads.
pub fn on_all_threads<I: Send>(
    items: Vec<I>,
    work: &(dyn Fn(usize, I) -> Result<()> + Sync),
) -> Result<()> {
    let items: Vec<_> = items
        .into_iter()
        .map(|item| Mutex::new(Some(item)))
        .collect();
    each_number(items.len(), &|number| {
        let item = items.get(number).and_then(|item| item.lock().take());
        item.map_or(Ok(()), |item| work(number, item))
    })
}

/// As [`on_all_threads`], with scratch memory that one item leaves to the next.
pub fn with_scratch<I: Send, S: Default + Send>(
    items: Vec<I>,
    work: impl Fn(&mut S, usize, I) -> Result<()> + Sync,
) -> Result<()> {
    let free = Mutex::new(Vec::new());
    on_all_threads(items, &|number, item| {
        let mut scratch: S = free.lock().pop().unwrap_or_default();
        let done = work(&mut scratch, number, item);
        free.lock().push(scratch);
        done
    })
}

/// rayon's part of it, compiled once for all types and closures.
fn each_number(count: usize, work: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
    match count {
        // Not worth handing over.
        0 | 1 => (0..count).try_for_each(work),
        _ => (0..count).into_par_iter().try_for_each(work),
    }
}

/// Sums of several elements at a time, so that the compiler can use vector instructions.
const LANES: usize = 8;

/// Σ a · b. The order of summation depends on the length only.
pub fn sum_of_products<S: Number>(a: &[S], b: &[S]) -> S {
    sum_of(a, b, |a, b| a * b)
}

/// Σ f(a, b)
#[inline(always)]
pub fn sum_of<S: Number>(a: &[S], b: &[S], f: impl Fn(S, S) -> S) -> S {
    let mut lanes = [S::zero(); LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut add = |a: &[S], b: &[S]| {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += f(*a, *b);
        }
    };
    for (a, b) in a.iter().zip(b) {
        add(a, b);
    }
    add(a_rest, b_rest);
    lanes.into_iter().sum()
}

/// The largest element, ignoring NaN; negative infinity if there is none.
pub fn max_of<S: Number>(values: &[S]) -> S {
    let mut lanes = [S::neg_infinity(); LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut join = |values: &[S]| {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    };
    for values in chunks {
        join(values);
    }
    join(rest);
    let larger = |a: S, b| if b > a { b } else { a };
    lanes.into_iter().fold(S::neg_infinity(), larger)
}
