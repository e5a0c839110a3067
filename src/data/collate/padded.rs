use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use crate::batch::{Batch, Extent};
use crate::data::Tensors;
use crate::error::Result;

/// Sequences that were padded to one length, from [`Pad`](super::Pad). It is a [`Batch`] of sequences.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Padded {
    /// The values: `[samples, length, …]`.
    pub values: Tensor,
    /// How many of each row's values are its own: u32, `[samples]`.
    pub lengths: Tensor,
}

impl Padded {
    pub(super) fn new(values: Tensor, lengths: Vec<u32>) -> Result<Self> {
        let lengths = Tensor::new(lengths, values.device())?;
        Ok(Self { values, lengths })
    }

    /// Returns 1 for each value and 0 for padding: `[samples, length]`. Models such as BERT take it as their attention mask.
    ///
    /// # Errors
    /// Those of candle.
    pub fn mask(&self, dtype: DType) -> Result<Tensor> {
        let length = self.values.dim(1)? as u32;
        let places = Tensor::arange(0, length, self.lengths.device())?;
        let is_own = places
            .unsqueeze(0)?
            .broadcast_lt(&self.lengths.unsqueeze(1)?)?;
        Ok(is_own.to_dtype(dtype)?)
    }

    /// Returns the target of each token, the next one of its sequence, as i64 `[samples, length]`; `ignored` at a sequence's last token
    /// and in padding, to be passed to
    /// [`linear_cross_entropy`](crate::nn::loss::linear_cross_entropy) as its `ignore_index`.
    ///
    /// # Errors
    /// Those of candle, also if values are not token ids of the shape `[samples, length]`.
    pub fn next_tokens(&self, ignored: i64) -> Result<Tensor> {
        let (samples, length) = self.values.dims2()?;
        if samples == 0 {
            return Ok(self.values.to_dtype(DType::I64)?);
        }
        let device = self.values.device();
        let last = Tensor::full(ignored, (samples, 1), device)?;
        let next = match length {
            0 | 1 => return Ok(last.narrow(1, 0, length)?),
            _ => self.values.narrow(1, 1, length - 1)?.to_dtype(DType::I64)?,
        };
        let is_own = self.mask(DType::U8)?.narrow(1, 1, length - 1)?;
        let others = Tensor::full(ignored, next.shape(), device)?;
        let next = is_own
            .contiguous()?
            .where_cond(&next.contiguous()?, &others)?;
        Ok(Tensor::cat(&[next, last], 1)?)
    }
}

/// Values, then lengths.
impl Tensors for Padded {
    fn tensors(&self) -> Vec<&Tensor> {
        vec![&self.values, &self.lengths]
    }

    fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.values, &mut self.lengths]
    }
}

impl Batch for Padded {
    type Slice<'a> = Padded;

    fn extent(&self) -> Result<Extent> {
        self.values.extent()
    }

    fn slice(&self, range: Range<usize>) -> Result<Padded> {
        Ok(Padded {
            values: self.values.slice(range.clone())?,
            lengths: self.lengths.slice(range)?,
        })
    }

    fn device(&self) -> Option<Device> {
        Some(self.values.device().clone())
    }
}
