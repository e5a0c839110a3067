//! The loss of a micro-batch with its weight, and the loss of a step, which stays on the device until somebody reads it.
//!
//! All kinds of losses become a factor and a weight: the sum `factor · value` has this weight. The mean of a step is the quotient of both sums, so it
//! does not depend on how the batch was cut.

use std::fmt;

use candle_core::{DType, Device, Tensor};

use crate::error::{Result, invalid, not_scalar};
use crate::memory::Mark;
#[cfg(feature = "nn")]
use crate::nn::loss::LossSum;

/// Other weights would leave the range of f32 gradients.
const WEIGHTS: std::ops::RangeInclusive<f64> = 1e-30..=1e30;

/// The loss of a micro-batch, a tensor with one element, and its weight in the update.
///
/// A plain tensor is a [`Mean`](Self::Mean), so closures that were written for candle need no change.
///
/// The gradient of an update is the weighted mean over its micro-batches. A [`Mean`](Self::Mean) has the number of samples as its
/// weight. A mean over anything else, such as the tokens that are not padding, is a [`weighted_mean`](Self::weighted_mean) with the
/// number of these, or a [`sum`](Self::sum). Then the update equals that of the whole batch even if micro-batches differ in length; a
/// mean of means does not (transformers #34191). [`linear_cross_entropy_sum`](crate::nn::loss::linear_cross_entropy_sum) returns a sum
/// with its weight.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::train::Loss;
/// use candle_headroom::{AdamW, AdaptiveTrainer};
/// use candle_nn::{Module, VarBuilder, VarMap, linear};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let optimizer = AdamW::builder(&varmap).learning_rate(0.05).build()?;
/// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
///
/// let x = Tensor::randn(0f32, 1., (6, 4), &Device::Cpu)?;
/// let keep = Tensor::new(&[1f32, 0., 1., 1., 0., 0.], &Device::Cpu)?; // samples that count
/// trainer.step(&(x, keep), |(x, keep), _| {
///     let each = model.forward(&x)?.sqr()?.squeeze(1)?;
///     let kept = keep.sum_all()?;
///     let mean = (each * keep)?.sum_all()?.div(&kept)?; // NaN if none is kept, which then has the weight 0
///     Ok(Loss::weighted_mean(mean, kept.to_scalar::<f32>()?.into()))
/// })?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
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
    /// A mean over something else than samples, usually over tokens.
    #[non_exhaustive]
    WeightedMean {
        /// The mean.
        value: Tensor,
        /// The number of what it is the mean of, as in [`Sum`](Self::Sum).
        weight: f64,
    },
}

impl Loss {
    /// Makes a sum of `weight` terms, a tensor with one element. The update has the sum over all micro-batches, divided by all weights.
    ///
    /// A weight that is neither 0 nor from 1e-30 to 1e30 is refused by the step ([`is_loss`](crate::Error::is_loss)).
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::Loss;
    ///
    /// // The losses of five tokens, of which the last two are padding.
    /// let losses = Tensor::new(&[0.9f32, 1.1, 1.0, 7.0, 7.0], &Device::Cpu)?;
    /// let sum = losses.narrow(0, 0, 3)?.sum_all()?;
    /// let loss = Loss::sum(sum, 3.);
    /// assert!(matches!(loss, Loss::Sum { weight, .. } if weight == 3.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn sum(value: Tensor, weight: f64) -> Self {
        Self::Sum { value, weight }
    }

    /// Makes a mean over `weight` tokens, or whatever the mean is over: the same update as [`sum`](Self::sum) with `value · weight`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{GradientAccumulator, Loss, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// let mut accumulator = GradientAccumulator::builder(optimizer).build()?;
    /// let x = Tensor::new(&[1f32, 3., 5., 7., 0.], &Device::Cpu)?; // the last one is padding
    /// let mean = x.narrow(0, 0, 4)?.broadcast_sub(&w)?.sqr()?.mean_all()?;
    /// accumulator.add(Loss::weighted_mean(mean, 4.), 5)?;
    /// let report = accumulator.update()?.expect("one micro-batch");
    /// assert_eq!((report.samples, report.loss.weight()), (5, 4.));
    /// assert_eq!(w.to_vec1::<f32>()?, [4.]); // the mean of the four
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn weighted_mean(value: Tensor, weight: f64) -> Self {
        Self::WeightedMean { value, weight }
    }

    /// Validates the loss of `samples` samples.
    pub(super) fn weighted(self, samples: usize) -> Result<Weighted> {
        let (value, factor, weight) = match self {
            Self::Mean(value) => (value, samples as f64, samples as f64),
            Self::Sum { value, weight } => (value, 1., weight),
            Self::WeightedMean { value, weight } => (value, weight, weight),
        };
        if samples == 0 {
            return Err(invalid!(
                Loss,
                "a loss over 0 samples: give the number of samples that it was computed from"
            ));
        }
        if weight != 0. && !WEIGHTS.contains(&weight) {
            return Err(invalid!(
                Loss,
                "loss weight must be 0 or in [1e-30, 1e30], got {weight:?}"
            ));
        }
        if value.elem_count() != 1 {
            return Err(not_scalar(value.shape()));
        }
        Ok(Weighted {
            value,
            factor,
            weight,
            samples,
        })
    }
}

impl From<Tensor> for Loss {
    fn from(value: Tensor) -> Self {
        Self::Mean(value)
    }
}

#[cfg(feature = "nn")]
impl From<LossSum> for Loss {
    fn from(sum: LossSum) -> Self {
        Self::sum(sum.value, sum.weight)
    }
}

/// A validated loss: `factor · value` is a sum with this weight.
#[derive(Debug)]
pub(super) struct Weighted {
    pub(super) value: Tensor,
    pub(super) factor: f64,
    pub(super) weight: f64,
    pub(super) samples: usize,
}

impl Weighted {
    /// Detaches the value from its graph, and from the memory of a larger tensor that it is a view of: a report keeps it until it is read.
    pub(super) fn alone(mut self) -> Result<Self> {
        self.value = self.value.detach();
        if is_view(&self.value) {
            self.value = self.value.flatten_all()?.force_contiguous()?;
        }
        Ok(self)
    }
}

/// The loss of an update. On an asynchronous device it stays there until it is read.
///
/// `{}` waits for the device and shows four digits after the point, or `n/a` if the loss cannot be read.
///
/// ```
/// # use candle_core::{Device, Tensor, Var};
/// # use candle_headroom::{AdaptiveTrainer, Sgd};
/// # let w = Var::new(&[0f32], &Device::Cpu)?;
/// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
/// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// let batch = Tensor::new(&[1f32, 3.], &Device::Cpu)?; // two samples
/// let loss = trainer.step(&batch, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?.loss;
/// assert_eq!((loss.read()?, loss.weight()), (5., 2.));
/// assert_eq!(loss.to_string(), "5.0000");
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct StepLoss {
    /// The sum of the values read so far.
    pub(super) sum: f64,
    /// Values on an asynchronous device, with their factors: a scalar on the device and some 250 bytes of host memory each.
    pub(super) pending: Vec<(Tensor, f64)>,
    weight: f64,
}

impl StepLoss {
    /// Adds a loss, unless its weight is 0: then its value may be NaN.
    pub(super) fn push(&mut self, loss: &Weighted) {
        if loss.weight == 0. {
            return;
        }
        self.weight += loss.weight;
        // Reading the CPU waits for nothing.
        let value = loss.value.device().is_cpu().then(|| scalar(&loss.value));
        match value {
            Some(Ok(value)) => self.sum += loss.factor * value,
            _ => self.pending.push((loss.value.clone(), loss.factor)),
        }
    }

    /// A mean that lies in this tensor.
    pub(super) fn mean(value: Tensor, weight: f64) -> Self {
        Self {
            sum: 0.,
            pending: vec![(value, weight)],
            weight,
        }
    }

    /// Returns the sum of the weights, the samples or the terms of [`Loss::Sum`], for a mean over several updates.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let (mut sum, mut weight) = (0., 0.);
    /// for x in [vec![1f32, 3.], vec![1.]] {
    ///     let x = Tensor::new(x, &Device::Cpu)?;
    ///     let loss = trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?.loss;
    ///     sum += loss.read()? * loss.weight();
    ///     weight += loss.weight();
    /// }
    /// assert_eq!((sum, weight), (11., 3.)); // (1 + 9 + 1) / 3 is the mean
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// The device that holds what has not been read.
    pub(super) fn device(&self) -> Option<&Device> {
        self.pending.first().map(|(value, _)| value.device())
    }

    /// Reads a loss that was computed before a point that the device has passed.
    pub(super) fn read_before(&self, mark: &Mark) -> Option<f64> {
        let values = mark.read(self.pending.iter().map(|(value, _)| value))?;
        let factors = self.pending.iter().map(|(_, factor)| factor);
        let pending: f64 = factors
            .zip(values)
            .map(|(factor, value)| factor * value)
            .sum();
        Some((self.sum + pending) / self.weight)
    }

    /// Waits for the device and returns the weighted mean of the micro-batches' losses; NaN if all had weight 0.
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

/// Whether a value on a GPU is a part of a larger tensor. On the CPU values are read at once.
fn is_view(value: &Tensor) -> bool {
    #[cfg(feature = "cuda")]
    if let candle_core::Storage::Cuda(storage) = &*value.storage_and_layout().0 {
        use candle_core::cuda_backend::CudaStorageSlice as Slice;
        return match &storage.slice {
            Slice::F32(all) => all.len() > 1,
            Slice::F64(all) => all.len() > 1,
            Slice::F16(all) => all.len() > 1,
            Slice::BF16(all) => all.len() > 1,
            _ => false,
        };
    }
    let _ = value;
    false
}

/// Waits for the device and returns the value.
pub(super) fn scalar(value: &Tensor) -> candle_core::Result<f64> {
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
