use std::fmt;

use candle_core::{DType, Tensor};

use crate::error::{LossError, Result};

/// Smaller weights, and larger than its inverse, would leave the range of f32 gradients.
const LEAST_WEIGHT: f64 = 1e-30;

/// A micro-batch's loss, and how much it weighs among the others of its update.
///
/// A plain tensor is a [`Mean`](Self::Mean), so closures written for candle alone return what they always did.
///
/// An update's gradient is the weighted mean over all its micro-batches: with means, each weighs as many samples as it holds;
/// with sums, the sum of all divided by the sum of the weights, for example of the tokens that count. That is the gradient of
/// the whole batch at once, also where micro-batches differ in length; a mean of means is not (transformers #34191).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::Loss;
///
/// let per_token = Tensor::new(&[0.5f32, 1.5, 0.], &Device::Cpu)?; // the last token is padding
/// let loss = Loss::sum(per_token.sum_all()?, 2.);
/// assert!(matches!(loss, Loss::Sum { weight: 2., .. }));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Loss {
    /// The mean over the micro-batch's samples: one number.
    Mean(Tensor),
    /// A sum over something that is counted, as a rule tokens.
    Sum {
        /// The sum: one number.
        value: Tensor,
        /// How many were summed. A micro-batch of weight 0 takes no part: its value may be anything, even not a number.
        weight: f64,
    },
}

impl Loss {
    /// The mean over the micro-batch's samples.
    pub fn mean(value: Tensor) -> Self {
        Self::Mean(value)
    }

    /// A sum, with the number of things that were summed.
    pub fn sum(value: Tensor, weight: f64) -> Self {
        Self::Sum { value, weight }
    }

    /// The loss as a sum over `samples` samples: its value, the value's factor in that sum, and its weight.
    pub(super) fn weighted(self, samples: usize) -> Result<Weighted> {
        let (value, factor, weight) = match self {
            Self::Mean(value) => (value, samples as f64, samples as f64),
            Self::Sum { value, weight } => (value, 1., weight),
        };
        if samples == 0 {
            return Err(LossError::NoSamples.into());
        }
        if weight != 0. && !(LEAST_WEIGHT..=1. / LEAST_WEIGHT).contains(&weight) {
            return Err(LossError::Weight { weight }.into());
        }
        if value.elem_count() != 1 {
            let shape = value.shape().clone();
            return Err(LossError::NotScalar { shape }.into());
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

/// A loss that was checked.
#[derive(Debug)]
pub(super) struct Weighted {
    pub(super) value: Tensor,
    pub(super) factor: f64,
    pub(super) weight: f64,
}

/// The loss of an update, left on the device until it is asked for.
///
/// ```
/// # use candle_core::{DType, Device, Tensor, Var};
/// # use candle_headroom::{GradientAccumulator, Sgd};
/// # let x = Var::new(3f32, &Device::Cpu)?;
/// # let mut accumulator = GradientAccumulator::new(vec![x.clone()])?;
/// # let mut optimizer = Sgd::new_lr(vec![x.clone()], 0.1)?;
/// accumulator.add(x.sqr()?, 1)?;
/// let window = accumulator.flush(&mut optimizer)?.expect("one loss was added");
/// assert_eq!(window.loss.read()?, 9.);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct StepLoss {
    /// Values that the forward passes left, and their factors; no memory of their own beyond 4 bytes each.
    parts: Vec<(Tensor, f64)>,
    weight: f64,
}

impl StepLoss {
    pub(super) fn push(&mut self, loss: &Tensor, factor: f64, weight: f64) {
        self.parts.push((loss.detach(), factor));
        self.weight += weight;
    }

    /// The sum of the weights: samples, or what [`Loss::Sum`] counted. For a mean over several updates.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// The weighted mean of the micro-batches' losses; not a number where no micro-batch weighed anything. On an
    /// asynchronous device this waits for it.
    ///
    /// # Errors
    /// candle's, from reading the device.
    pub fn read(&self) -> candle_core::Result<f64> {
        let mut sum = 0.;
        for (value, factor) in &self.parts {
            let value = value.flatten_all()?.get(0)?.to_dtype(DType::F64)?;
            sum += factor * value.to_scalar::<f64>()?;
        }
        Ok(sum / self.weight)
    }
}

/// `n/a` where it cannot be read.
impl fmt::Display for StepLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.read() {
            Ok(loss) => write!(f, "{loss:.4}"),
            Err(_) => f.write_str("n/a"),
        }
    }
}
