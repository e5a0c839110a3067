//! Functions of rows of scores.

use super::matrix::Number;
use crate::nn::attention::dropout::Dropout;

const LANES: usize = 16;

/// The largest element; −∞ for none.
pub fn maximum<T: Number>(row: &[T]) -> T {
    let larger = |a: T, b: T| if b > a { b } else { a };
    let mut lanes = [T::neg_infinity(); LANES];
    for part in row.chunks(LANES) {
        for (lane, x) in lanes.iter_mut().zip(part) {
            *lane = larger(*lane, *x);
        }
    }
    lanes.into_iter().fold(T::neg_infinity(), larger)
}

/// x → exp(x − shift).
pub fn exponentials<T: Number>(row: &mut [T], shift: T) {
    for x in row {
        *x = (*x - shift).exp();
    }
}

pub fn sum<T: Number>(row: &[T]) -> T {
    let mut lanes = [T::zero(); LANES];
    for part in row.chunks(LANES) {
        for (lane, x) in lanes.iter_mut().zip(part) {
            *lane += *x;
        }
    }
    lanes.into_iter().fold(T::zero(), |a, b| a + b)
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
    for (x, index) in row.iter_mut().zip(first..) {
        *x = match dropout.keeps(index) {
            true => *x * factor,
            false => T::zero(),
        };
    }
}
