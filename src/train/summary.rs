use super::step_loss::StepLoss;

/// What one update consisted of; from [`GradientAccumulator::update`](super::GradientAccumulator::update).
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::{GradientAccumulator, Sgd};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.1).build()?;
/// let mut accumulator = GradientAccumulator::builder(optimizer).build()?;
/// accumulator.add(w.sqr()?, 8)?;
/// accumulator.add(w.sqr()?, 4)?;
/// let summary = accumulator.update()?.expect("two micro-batches");
/// assert_eq!((summary.samples, summary.sizes, summary.loss.weight()), (12, vec![8, 4], 12.));
/// assert_eq!(summary.updated, Some(true));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct UpdateSummary {
    /// Number of samples.
    pub samples: usize,
    /// Sizes of the micro-batches, in order.
    pub sizes: Vec<usize>,
    /// The loss, on the device until it is read.
    pub loss: StepLoss,
    /// Whether parameters changed: `Some(false)` if the optimizer skipped a gradient that is not finite, `None` if only the
    /// device knows and nothing waited for it.
    pub updated: Option<bool>,
}
