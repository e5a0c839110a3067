use std::fmt::Display;

use candle_core::{DType, Device, Error, Result, Tensor, WithDType, bail};
use num_traits::Bounded;

use crate::kernel::same_device;

/// The class of each row, as u8, u32 or i64. The largest value of the type stands for none, as in candle's `gather`.
#[derive(Clone)]
pub struct Targets(Tensor);

impl Targets {
    /// Checks the shape and the type, for logits of so many rows on a device.
    pub fn new(targets: &Tensor, rows: usize, device: &Device) -> Result<Self> {
        match targets.dims() {
            &[len] if len == rows => {}
            &[len] => bail!("batch size mismatch between inp ({rows}) and target ({len})"),
            dims => bail!("the target tensor should have a single dimension ({dims:?})"),
        }
        if !matches!(targets.dtype(), DType::U8 | DType::U32 | DType::I64) {
            return Err(Error::UnsupportedDTypeForOp(targets.dtype(), "cross-entropy").bt());
        }
        same_device("cross-entropy", device, targets.device())?;
        Ok(Self(targets.detach()))
    }

    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    /// The class of each row; `None` for rows that do not count.
    pub fn classes(&self, classes: usize) -> Result<Vec<Option<usize>>> {
        match self.0.dtype() {
            DType::U8 => read::<u8>(&self.0, classes),
            DType::U32 => read::<u32>(&self.0, classes),
            _ => read::<i64>(&self.0, classes),
        }
    }

    /// The same, where rows of the class `index` do not count either.
    pub fn ignoring(&self, index: i64) -> Result<Self> {
        let (classes, none) = self.numbers()?;
        let ignored = (classes.eq(index)? + classes.eq(none)?)?;
        let largest = Tensor::full(i64::MAX, classes.shape(), classes.device())?;
        Ok(Self(ignored.where_cond(&largest, &classes)?))
    }

    /// The classes as i64, contiguous, and the number that stands for none.
    pub fn numbers(&self) -> Result<(Tensor, i64)> {
        let none = match self.0.dtype() {
            DType::U8 => i64::from(u8::MAX),
            DType::U32 => i64::from(u32::MAX),
            _ => i64::MAX,
        };
        Ok((self.0.to_dtype(DType::I64)?.contiguous()?, none))
    }
}

fn read<I>(targets: &Tensor, classes: usize) -> Result<Vec<Option<usize>>>
where
    I: WithDType + Bounded + Display + TryInto<usize>,
{
    let rows = targets.to_vec1::<I>()?.into_iter().enumerate();
    let read = rows.map(|(row, class)| {
        if class == I::max_value() {
            return Ok(None);
        }
        match class.try_into() {
            Ok(index) if index < classes => Ok(Some(index)),
            _ => bail!(
                "cross-entropy: the target of row {row} is {class}, there are {classes} classes"
            ),
        }
    });
    read.collect()
}
