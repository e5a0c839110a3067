//! Functions of rows of scores.

use std::ops::Range;

use crate::attention::dropout::Dropout;
use crate::kernel::matrix::Number;

/// Sets the elements outside of a range to zero, and returns those within.
pub fn only<T: Number>(row: &mut [T], range: Range<usize>) -> &mut [T] {
    let (row, behind) = row.split_at_mut(range.end.min(row.len()));
    let (before, row) = row.split_at_mut(range.start.min(row.len()));
    before.fill(T::zero());
    behind.fill(T::zero());
    row
}

/// x → exp(x − shift).
pub fn exponentials<T: Number>(row: &mut [T], shift: T) {
    for x in row {
        *x = (*x - shift).fast_exp();
    }
}

/// x → x · factor.
pub fn multiply_by<T: Number>(row: &mut [T], factor: T) {
    row.iter_mut().for_each(|x| *x *= factor);
}

/// x → cap · tanh(x / cap).
pub fn cap<T: Number>(row: &mut [T], cap: T) {
    for x in row {
        *x = (*x / cap).tanh() * cap;
    }
}

/// The derivatives of [`cap`], from its results.
pub fn slopes<T: Number>(capped: &[T], cap: T, slopes: &mut Vec<T>) {
    slopes.clear();
    slopes.extend(capped.iter().map(|y| {
        let tanh = *y / cap;
        T::one() - tanh * tanh
    }));
}

/// Sets dropped elements to zero and multiplies the others by `factor`. `first` is the position of the first element.
pub fn drop_out<T: Number>(row: &mut [T], dropout: &Dropout, first: u64, factor: T) {
    for (x, keeps) in row.iter_mut().zip(dropout.keeps(first)) {
        *x = if keeps { *x * factor } else { T::zero() };
    }
}
