use candle_core::{DType, Device, Error, Result, Tensor, bail};

use crate::bounds::at_least;
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
        let (numbers, none) = self.numbers()?;
        let rows = numbers.to_vec1::<i64>()?.into_iter().enumerate();
        let read = rows.map(|(row, class)| match usize::try_from(class) {
            _ if class == none => Ok(None),
            Ok(index) if index < classes => Ok(Some(index)),
            _ => bail!(
                "cross-entropy: the target of row {row} is {class}, there are {classes} classes"
            ),
        });
        read.collect()
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

/// The sum of the weights of the tokens that count.
pub enum Total {
    Known(f64),
    OnDevice(Tensor),
}

impl Total {
    /// The number of rows whose class counts, in the type of sums if it is not read from the device.
    pub fn of(targets: &Targets, classes: usize, dtype: DType) -> Result<Self> {
        if targets.tensor().device().is_cpu() {
            let counted = targets.classes(classes)?.into_iter().flatten().count();
            return Ok(Self::Known(counted as f64));
        }
        let (targets, none) = targets.numbers()?;
        let counted = targets.ne(none)?.to_dtype(dtype)?;
        Ok(Self::OnDevice(counted.sum_all()?))
    }

    /// A sum over all tokens divided by the total: zero if no token counts.
    pub fn mean(&self, sum: &Tensor) -> Result<Tensor> {
        /// Divides a sum of no terms, which is 0.
        const LEAST: f64 = 1e-30;
        match self {
            Self::Known(total) if *total > 0. => sum / *total,
            Self::Known(_) => sum * 0.,
            Self::OnDevice(total) => sum / at_least(total, LEAST)?,
        }
    }

    /// The number, which on other devices than the CPU may wait for the device.
    pub fn read(&self) -> Result<f64> {
        match self {
            Self::Known(total) => Ok(*total),
            Self::OnDevice(total) => total.to_dtype(DType::F64)?.to_scalar(),
        }
    }
}
