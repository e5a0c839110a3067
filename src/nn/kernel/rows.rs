//! Rows shared among rayon's threads.

use num_traits::{Float, Zero};
use rayon::prelude::*;

use super::Element;

/// Elements that one thread takes at a time. Less is not worth handing over.
const AT_ONCE: usize = 1 << 13;

/// Number of rows of `width` elements that one thread takes at a time. It does not depend on the number of threads, so neither do
/// sums over these groups of rows.
pub fn rows_at_once(width: usize) -> usize {
    (AT_ONCE / width.max(1)).max(1)
}

/// Calls `work` for groups of rows of `width` elements, with the number of the group's first row and its elements, on all threads.
pub fn by_rows<T: Send>(out: &mut [T], width: usize, work: impl Fn(usize, &mut [T]) + Sync + Send) {
    if width == 0 || out.is_empty() {
        return;
    }
    let rows = rows_at_once(width);
    let len = rows * width;
    if out.len() <= len {
        return work(0, out);
    }
    let groups = out.par_chunks_mut(len).enumerate();
    groups.for_each(|(group, out)| work(group * rows, out));
}

/// Sums of several elements at a time, so that the compiler can use vector instructions.
const LANES: usize = 8;

/// Σ a · b, in the wider type. The order of summation depends on the length only.
pub fn sum_of_products<T: Element>(a: &[T], b: &[T]) -> T::Sum {
    sum_of(a, b, |a, b| a * b)
}

/// Σ f(a, b), in the wider type.
#[inline(always)]
pub fn sum_of<T: Element>(a: &[T], b: &[T], f: impl Fn(T::Sum, T::Sum) -> T::Sum) -> T::Sum {
    let mut lanes = [T::Sum::zero(); LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut add = |a: &[T], b: &[T]| {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += f(a.widen(), b.widen());
        }
    };
    for (a, b) in a.iter().zip(b) {
        add(a, b);
    }
    add(a_rest, b_rest);
    lanes.into_iter().sum()
}

/// The largest element, ignoring NaN; negative infinity if there is none.
pub fn max_of<T: Element>(values: &[T]) -> T::Sum {
    let mut lanes = [T::Sum::neg_infinity(); LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut join = |values: &[T]| {
        for (lane, value) in lanes.iter_mut().zip(values) {
            let value = value.widen();
            *lane = if value > *lane { value } else { *lane };
        }
    };
    for values in chunks {
        join(values);
    }
    join(rest);
    let larger = |a: T::Sum, b| if b > a { b } else { a };
    lanes.into_iter().fold(T::Sum::neg_infinity(), larger)
}
