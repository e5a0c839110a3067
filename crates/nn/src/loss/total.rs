use candle_core::{DType, Result, Tensor};

use super::Targets;

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
            Self::OnDevice(total) => sum / total.maximum(LEAST)?,
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
