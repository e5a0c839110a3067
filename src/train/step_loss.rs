use std::fmt;

use candle_core::{DType, Tensor};

use super::loss::Weighted;

/// The loss of an update. On an asynchronous device it stays there until it is read.
#[derive(Debug, Clone, Default)]
pub struct StepLoss {
    /// The sum of the values read so far.
    sum: f64,
    /// Values on an asynchronous device, with their factors: a scalar on the device and some 250 bytes of host memory each.
    pending: Vec<(Tensor, f64)>,
    weight: f64,
}

impl StepLoss {
    pub(super) fn push(&mut self, loss: &Weighted) {
        self.weight += loss.weight;
        // Reading the CPU waits for nothing.
        let value = loss.value.device().is_cpu().then(|| scalar(&loss.value));
        match value {
            Some(Ok(value)) => self.sum += loss.factor * value,
            _ => self.pending.push((loss.value.clone(), loss.factor)),
        }
    }

    /// Returns the sum of the weights: the number of samples, or of the terms of [`Loss::Sum`](crate::Loss::Sum). Needed for a
    /// mean over several updates.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Returns the weighted mean of the micro-batches' losses; NaN if all had weight 0. On an asynchronous device this waits
    /// for it.
    ///
    /// # Errors
    /// candle's, from reading the device.
    pub fn read(&self) -> candle_core::Result<f64> {
        let mut sum = self.sum;
        for (value, factor) in &self.pending {
            sum += factor * scalar(value)?;
        }
        Ok(sum / self.weight)
    }
}

fn scalar(value: &Tensor) -> candle_core::Result<f64> {
    value
        .flatten_all()?
        .get(0)?
        .to_dtype(DType::F64)?
        .to_scalar()
}

/// `n/a` if it cannot be read.
impl fmt::Display for StepLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.read() {
            Ok(loss) => write!(f, "{loss:.4}"),
            Err(_) => f.write_str("n/a"),
        }
    }
}
