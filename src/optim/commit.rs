use candle_core::Tensor;
use candle_core::backprop::GradStore;
use candle_nn::Optimizer;

use super::{Algorithm, Fused};
use crate::error::{Error, Phase, Remedy, Result, UpdateInterrupted};

/// What a trainer needs of an optimizer. Those of this crate are, candle's are, and any other
/// [`candle_nn::Optimizer`] is when wrapped in [`Foreign`].
///
/// ```
/// use candle_core::{Device, Var, backprop::GradStore};
/// use candle_headroom::{AdaptiveTrainer, Commit, Result};
///
/// /// Moves every parameter against its gradient's sign.
/// struct SignSgd(Vec<Var>, f64);
///
/// impl Commit for SignSgd {
///     fn commit(&mut self, gradients: &GradStore) -> Result<()> {
///         // All that can fail comes first, so that an error leaves everything as it was.
///         let mut moved = Vec::new();
///         for var in &self.0 {
///             if let Some(gradient) = gradients.get(var) {
///                 moved.push((var, (var.as_detached_tensor() - (gradient.sign()? * self.1)?)?));
///             }
///         }
///         for (var, value) in moved {
///             var.set(&value)?;
///         }
///         Ok(())
///     }
/// }
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let mut trainer = AdaptiveTrainer::builder(vec![w.clone()], SignSgd(vec![w.clone()], 0.5)).build()?;
/// trainer.step(&candle_core::Tensor::ones(4, candle_core::DType::F32, &Device::Cpu)?, |_, _| w.sqr())?;
/// assert_eq!(w.to_scalar::<f32>()?, 2.5);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Commit {
    /// Applies one update with these gradients. An error means that nothing has changed and that it can be called again, unless it
    /// is [`UpdateInterrupted`] (or a [`DeviceFault`](crate::DeviceFault), after which there is nothing to go on with).
    ///
    /// # Errors
    /// As the optimizer's own.
    fn commit(&mut self, gradients: &GradStore) -> Result<()>;

    /// What is to be differentiated instead of the loss itself: with a loss scale, the loss times it.
    ///
    /// # Errors
    /// candle's.
    fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        Ok(loss.clone())
    }

    /// Whether it takes f32 gradients for f16 and bf16 parameters. Then a trainer's sums, which are f32, need no conversion.
    fn takes_f32(&self) -> bool {
        false
    }

    /// What would make it take less memory, where it can tell: for the error of a trainer in which a single sample does not fit.
    fn remedies(&self) -> Vec<Remedy> {
        Vec::new()
    }

    /// Bytes of the state that it keeps, for reports; `None` where that is not known.
    fn state_bytes(&self) -> Option<u64> {
        None
    }
}

impl<A: Algorithm> Commit for Fused<A> {
    fn commit(&mut self, gradients: &GradStore) -> Result<()> {
        Fused::commit(self, gradients)
    }

    fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        Fused::scale_loss(self, loss)
    }

    fn takes_f32(&self) -> bool {
        true
    }

    fn remedies(&self) -> Vec<Remedy> {
        Fused::remedies(self)
    }

    fn state_bytes(&self) -> Option<u64> {
        Some(Fused::state_bytes(self))
    }
}

impl Commit for candle_nn::AdamW {
    fn commit(&mut self, gradients: &GradStore) -> Result<()> {
        step(self, gradients)
    }
}

impl Commit for candle_nn::SGD {
    fn commit(&mut self, gradients: &GradStore) -> Result<()> {
        step(self, gradients)
    }
}

/// Any [`candle_nn::Optimizer`], for a trainer. It advances Var by Var and cannot undo it, so an error in it is
/// [`UpdateInterrupted`]: a trainer goes no further until it is given a sound one.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::{AdaptiveTrainer, Foreign};
/// use candle_nn::Optimizer;
///
/// fn train<O: Optimizer>(vars: Vec<Var>, optimizer: O) -> candle_headroom::Result<()> {
///     let trainer = AdaptiveTrainer::builder(vars, Foreign(optimizer)).build()?;
///     // …
///     let _back: O = trainer.into_optimizer().0;
///     Ok(())
/// }
/// # let w = Var::new(0f32, &Device::Cpu)?;
/// # train(vec![w.clone()], candle_nn::SGD::new(vec![w], 0.1)?)?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign<O>(pub O);

impl<O: Optimizer> Commit for Foreign<O> {
    fn commit(&mut self, gradients: &GradStore) -> Result<()> {
        step(&mut self.0, gradients)
    }
}

fn step(optimizer: &mut impl Optimizer, gradients: &GradStore) -> Result<()> {
    let stepped = optimizer.step(gradients);
    stepped.map_err(
        |error| match Error::from(error).in_phase(Phase::Optimizer) {
            // There is nothing to go on with.
            fault @ Error::DeviceFault(_) => fault,
            reason => UpdateInterrupted {
                reason: Some(reason),
            }
            .into(),
        },
    )
}
