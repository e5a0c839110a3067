//! Tensors on the CPU as slices of matrices, what is added to scores, and functions of their rows.

use std::ops::Range;

use candle_core::{Error, Layout, Result, Shape, Storage, StorageRef, Tensor};

use crate::attention::rule::{Dropout, Rule};
use crate::kernel::matrix::Matrix;
use crate::kernel::{Number, tensor};

/// A tensor's storage, which is locked, and its layout.
pub type Locked<'a> = (StorageRef<'a>, &'a Layout);

/// A tensor of 4 dimensions at any strides, 0 for a dimension of length 1.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    data: &'a [T],
    strides: [usize; 4],
    width: usize,
}

impl<'a, T: Number> View<'a, T> {
    fn new((storage, layout): &'a Locked) -> Result<Self> {
        let Storage::Cpu(storage) = &**storage else {
            return Err(misfit());
        };
        let data = T::cpu_storage_as_slice(storage)?;
        let mut strides: [usize; 4] = layout.stride().try_into().map_err(|_| misfit())?;
        for (stride, len) in strides.iter_mut().zip(layout.dims()) {
            *stride = if *len == 1 { 0 } else { *stride };
        }
        Ok(Self {
            data: data.get(layout.start_offset()..).ok_or_else(misfit)?,
            strides,
            width: layout.dims().last().copied().unwrap_or(1),
        })
    }

    /// Some rows of the matrix of a head.
    pub fn rows(self, [batch, head, first]: [usize; 3], count: usize) -> Result<Matrix<'a, T>> {
        let [_, _, of_row, of_column] = self.strides;
        let data = self.data.get(self.start([batch, head, first, 0])..);
        let data = data.ok_or_else(misfit)?;
        Matrix::new(data, [count, self.width], [of_row, of_column])
    }

    /// A row of contiguous elements.
    pub fn row(self, [batch, head, row]: [usize; 3]) -> Result<&'a [T]> {
        self.part([batch, head, row, 0], self.width)
    }

    /// Contiguous elements from a place on, or the one that stands for all.
    fn part(self, at: [usize; 4], len: usize) -> Result<&'a [T]> {
        let start = self.start(at);
        let len = if self.strides[3] == 0 { 1 } else { len };
        self.data.get(start..start + len).ok_or_else(misfit)
    }

    fn start(self, at: [usize; 4]) -> usize {
        at.iter().zip(self.strides).map(|(at, of)| at * of).sum()
    }
}

/// The elements of tensors.
pub fn views<'a, T: Number, const N: usize>(locked: &'a [Locked; N]) -> Result<[View<'a, T>; N]> {
    let views = locked.iter().map(View::new);
    let views = views.collect::<Result<Vec<View<T>>>>()?;
    views.try_into().map_err(|_| misfit())
}

pub fn misfit() -> Error {
    Error::Msg("attention: a tensor does not fit".into()).bt()
}

/// A tensor outside the graph.
pub fn from_vec<T: Number>(values: Vec<T>, shape: impl Into<Shape>) -> Tensor {
    tensor(Storage::Cpu(T::to_cpu_storage_owned(values)), shape.into())
}

/// What is added to scores: a rule's mask, and ALiBi's bias.
pub struct Bias<'a, T> {
    mask: Option<View<'a, T>>,
    slopes: Vec<T>,
    offset: i64,
}

impl<'a, T: Number> Bias<'a, T> {
    /// `mask` is the rule's.
    pub fn new(rule: &Rule, mask: Option<&'a Locked>) -> Result<Self> {
        let slopes = rule.slopes.as_ref().map(Tensor::to_vec1).transpose()?;
        Ok(Self {
            mask: mask.map(View::new).transpose()?,
            slopes: slopes.unwrap_or_default(),
            offset: rule.offset,
        })
    }

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

/// x → cap · tanh(x / cap).
pub fn cap<T: Number>(row: &mut [T], cap: T) {
    for x in row {
        *x = (*x / cap).tanh() * cap;
    }
}

/// Sets dropped elements to zero and multiplies the others by `factor`. `first` is the position of the first element.
pub fn drop_out<T: Number>(row: &mut [T], dropout: &Dropout, first: u64, factor: T) {
    for (x, keeps) in row.iter_mut().zip(dropout.keeps(first)) {
        *x = if keeps { *x * factor } else { T::zero() };
    }
}
