//! Functions of rows of scores.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::view::{View, with_views};
use crate::attention::rule::{Dropout, Rule};
use crate::kernel::matrix::Number;

/// What is added to scores: a rule's mask, and ALiBi's bias.
pub struct Bias<'a, T> {
    mask: Option<View<'a, T>>,
    slopes: Vec<T>,
    offset: i64,
}

impl<T: Number> Bias<'_, T> {
    /// Adds to the scores of a query, from a key on.
    pub fn add_to(
        &self,
        [batch, head, query]: [usize; 3],
        key: usize,
        scores: &mut [T],
    ) -> Result<()> {
        if let Some(mask) = &self.mask {
            match mask.part([batch, head, query, key], scores.len())? {
                [bias] => scores.iter_mut().for_each(|score| *score += *bias),
                bias => {
                    let pairs = scores.iter_mut().zip(bias);
                    pairs.for_each(|(score, bias)| *score += *bias);
                }
            }
        }
        if let Some(slope) = self.slopes.get(head) {
            let at = query as i64 + self.offset - key as i64;
            for (key, score) in (0..).zip(scores) {
                *score -= *slope * T::from_f64((at - key).unsigned_abs() as f64);
            }
        }
        Ok(())
    }
}

/// Calls `work` with what a rule adds to scores.
pub fn with_bias<T: Number, R>(rule: &Rule, work: impl FnOnce(&Bias<T>) -> Result<R>) -> Result<R> {
    let slopes = rule.slopes.as_ref().map(Tensor::to_vec1).transpose()?;
    let with = |mask: Option<View<T>>| {
        work(&Bias {
            mask,
            slopes: slopes.unwrap_or_default(),
            offset: rule.offset,
        })
    };
    match &rule.mask {
        None => with(None),
        Some(mask) => with_views([mask], |[mask]| with(Some(mask))),
    }
}

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
