use candle_core::Tensor;

use crate::error::{LossError, Result};

/// Other weights would leave the range of f32 gradients.
const WEIGHTS: std::ops::RangeInclusive<f64> = 1e-30..=1e30;

/// The loss of a micro-batch, a tensor with one element, and its weight in the update.
///
/// A plain tensor is a [`Mean`](Self::Mean), so closures that were written for candle need no change.
///
/// The gradient of an update is the weighted mean over its micro-batches. A mean has the number of samples as its weight. Sums
/// are added and divided by the sum of their weights, for example the number of tokens that are not padding. That equals the
/// gradient of the whole batch even if micro-batches differ in length; a mean of means does not (transformers #34191).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Loss {
    /// The mean over the micro-batch's samples.
    Mean(Tensor),
    /// A sum, usually over tokens.
    #[non_exhaustive]
    Sum {
        /// The sum.
        value: Tensor,
        /// The number of terms: 0, or from 1e-30 to 1e30. A micro-batch of weight 0 is ignored, even if its value is NaN.
        weight: f64,
    },
}

impl Loss {
    /// Makes a sum of `weight` terms.
    pub fn sum(value: Tensor, weight: f64) -> Self {
        Self::Sum { value, weight }
    }

    /// Validates the loss of `samples` samples.
    pub(super) fn weighted(self, samples: usize) -> Result<Weighted> {
        let (value, factor, weight) = match self {
            Self::Mean(value) => (value, samples as f64, samples as f64),
            Self::Sum { value, weight } => (value, 1., weight),
        };
        if samples == 0 {
            return Err(LossError::NoSamples.into());
        }
        if weight != 0. && !WEIGHTS.contains(&weight) {
            return Err(LossError::Weight(weight).into());
        }
        if value.elem_count() != 1 {
            let shape = value.shape().clone();
            return Err(LossError::NotScalar(shape).into());
        }
        Ok(Weighted {
            value,
            factor,
            weight,
        })
    }
}

impl From<Tensor> for Loss {
    fn from(value: Tensor) -> Self {
        Self::Mean(value)
    }
}

/// A validated loss: `factor · value` is a sum with this weight.
#[derive(Debug)]
pub(super) struct Weighted {
    pub(super) value: Tensor,
    pub(super) factor: f64,
    pub(super) weight: f64,
}

impl Weighted {
    /// Drops the graph.
    pub(super) fn detached(self) -> Self {
        let value = self.value.detach();
        Self { value, ..self }
    }
}
