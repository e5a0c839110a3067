use candle_core::{Tensor, Var};

use super::loss::StepLoss;
use crate::optim::blend;

/// What one update was made from.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::{GradientAccumulator, Sgd};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let mut optimizer = Sgd::new_lr(vec![w.clone()], 0.1)?;
/// let mut accumulator = GradientAccumulator::new(vec![w.clone()])?;
/// accumulator.add(w.sqr()?, 8)?;
/// accumulator.add(w.sqr()?, 4)?;
/// let window = accumulator.flush(&mut optimizer)?.expect("two micro-batches");
/// assert_eq!((window.samples, window.sizes, window.loss.weight()), (12, vec![8, 4], 12.));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Window {
    /// Samples of all its micro-batches.
    pub samples: usize,
    /// Its micro-batches' sizes, in order.
    pub sizes: Vec<usize>,
    /// The loss, on the device until it is read.
    pub loss: StepLoss,
}

/// One Var and its mean gradient.
#[derive(Debug)]
pub(super) struct Slot {
    /// The Var's place in the list that the user gave.
    pub(super) index: usize,
    pub(super) var: Var,
    pub(super) buffer: Option<Var>,
    /// Whether the buffer holds a gradient of the present window.
    pub(super) is_filled: bool,
}

impl Slot {
    pub(super) fn blend(
        &mut self,
        keep: f64,
        add: f64,
        gradient: Option<Tensor>,
    ) -> candle_core::Result<()> {
        let Some(buffer) = &self.buffer else {
            return Ok(());
        };
        match (&gradient, self.is_filled) {
            (Some(gradient), true) => blend(buffer, keep, add, Some(gradient))?,
            (Some(gradient), false) => blend(buffer, 0., add, Some(gradient))?,
            (None, true) => blend(buffer, keep, 0., None)?,
            (None, false) => {}
        }
        self.is_filled |= gradient.is_some();
        Ok(())
    }
}
