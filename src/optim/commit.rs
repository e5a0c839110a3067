use candle_core::Tensor;
use candle_core::backprop::GradStore;

use super::{Parameter, Shard, StateDict};
use crate::error::{Error, Remedy, Result, invalid};

/// What became of an update; from [`Commit::commit`].
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::Sgd;
/// use candle_headroom::optim::{Commit, Committed};
///
/// let w = Var::new(0f32, &Device::Cpu)?;
/// let mut optimizer = Sgd::builder(vec![w.clone()]).skip_non_finite().build()?;
/// assert_eq!(optimizer.commit(&w.sqr()?.backward()?)?, Committed::Applied);
/// // The slope of a square root is infinite at 0.
/// assert_eq!(optimizer.commit(&w.sqrt()?.backward()?)?, Committed::Skipped);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Committed {
    /// The parameters have been updated.
    Applied,
    /// A gradient was not finite, so nothing was updated.
    Skipped,
    /// The device decides and was not waited for: ask [`progress`](super::Fused::progress), which waits.
    Unknown,
}

/// What a trainer needs of an optimizer. [`Foreign`](super::Foreign) implements it for any [`candle_nn::Optimizer`].
///
/// ```
/// use candle_core::backprop::GradStore;
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom::Result;
/// use candle_headroom::optim::{Commit, Committed, Parameter};
///
/// /// Moves each parameter by 0.5 against its gradient's sign.
/// struct SignSgd(Vec<Parameter>);
///
/// impl Commit for SignSgd {
///     fn parameters(&self) -> &[Parameter] {
///         &self.0
///     }
///
///     fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
///         // Everything that can fail comes first, so that an error leaves all parameters as they were.
///         let mut updated = Vec::new();
///         for Parameter { var, .. } in &self.0 {
///             if let Some(gradient) = gradients.get(var) {
///                 updated.push((var, (var.as_detached_tensor() - (gradient.sign()? * 0.5)?)?));
///             }
///         }
///         updated.iter().try_for_each(|(var, value)| var.set(value))?;
///         Ok(Committed::Applied)
///     }
/// }
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let mut optimizer = SignSgd(vec![Parameter::new("w", w.clone())]);
/// optimizer.commit(&w.sqr()?.backward()?)?;
/// assert_eq!(w.to_scalar::<f32>()?, 2.5);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an optimizer that a trainer can use",
    note = "use one of this crate's, such as `candle_headroom::AdamW`",
    note = "or wrap an optimizer of candle in `candle_headroom::Foreign::new(optimizer, vars)`"
)]
pub trait Commit {
    /// The parameters that it updates now, without frozen ones; they may change when a group is frozen or thawed.
    fn parameters(&self) -> &[Parameter];

    /// The frozen parameters, which it does not update now; none by default.
    fn frozen(&self) -> Vec<Parameter> {
        Vec::new()
    }

    /// Makes all checks of [`commit`](Self::commit) that need no change, so that an update of several optimizers, as of
    /// [`Both`](super::Both), can make those of all first. None by default.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit). Nothing has changed then.
    fn check(&mut self, _: &GradStore) -> Result<()> {
        Ok(())
    }

    /// Applies one update with these gradients. After an error nothing has changed and it may be called again, unless the error
    /// is [`UpdateInterrupted`](crate::error::UpdateInterrupted) or [`DeviceFault`](crate::error::DeviceFault).
    ///
    /// # Errors
    /// Those of the optimizer.
    fn commit(&mut self, gradients: &GradStore) -> Result<Committed>;

    /// Restricts it to the elements of this shard, or to those of another one: it keeps state for them alone, and `commit` reads only
    /// their gradients and updates only them. The rank's own state, from [`state`](Self::state), is then a part of the whole, which
    /// [`StateDict::merge`] puts together. A group that is thawed later needs a new shard, which lists its parameters.
    ///
    /// Without `state`, what is kept for elements of the shard stays, and parameters that were not listed get new state. Where elements
    /// move between ranks, `state` is the whole state, which replaces all, as in [`load_state`](Self::load_state).
    ///
    /// # Errors
    /// About the optimizer ([`is_optimizer`](Error::is_optimizer)): if it cannot be sharded, as by default; if the shard leaves out a
    /// parameter that is not frozen; for elements that cannot be updated by themselves: beyond the parameter, or in blocks of 8 bits that
    /// are cut (see [`Shard::ALIGNMENT`]); without `state` for elements of which another rank has the state. Those of
    /// [`load_state`](Self::load_state), and of copying and memory. Nothing has changed then.
    #[doc(hidden)]
    fn shard(&mut self, _: &Shard, _: Option<&StateDict>) -> Result<()> {
        let reason = "its state cannot be divided; use one of the fused optimizers, such as AdamW";
        Err(not_sharded(std::any::type_name::<Self>(), reason))
    }

    /// What must be the same on all ranks that train together, a sentence for each option; by default the type's name.
    fn describe(&self) -> Vec<String> {
        vec![format!(
            "the optimizer is {}",
            std::any::type_name::<Self>()
        )]
    }

    /// Whether it keeps state for a shard alone, or waits for one: a trainer gives it one before the first update.
    #[doc(hidden)]
    fn is_sharded(&self) -> bool {
        false
    }

    /// Sums the squares of the gradients' elements in a shard, before any adjustment and always in the same order, if updates depend on the
    /// gradients of all ranks: for clipping by norm, a loss scale, or to skip a step with a gradient that is not finite. Otherwise, and by
    /// default, `None`. The sum is NaN if an element is not finite. The shard need not be the optimizer's own: where none is sharded, but
    /// the ranks' sums are added up, each gets the bits that it would get with shards.
    ///
    /// The first call with a shard allocates. On CUDA each waits for the device.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit) but for the loss scale, and those of [`shard`](Self::shard) about its pieces.
    #[doc(hidden)]
    fn measure(&mut self, _: &GradStore, _: &Shard) -> Result<Option<f64>> {
        Ok(None)
    }

    /// Applies one update as [`commit`](Self::commit), with the sum of what [`measure`](Self::measure) returned on all ranks, added in
    /// their order, in place of a sum over the gradients here. By default the sum is not used.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit).
    #[doc(hidden)]
    fn commit_measured(&mut self, gradients: &GradStore, _: f64) -> Result<Committed> {
        self.commit(gradients)
    }

    /// Returns the loss to differentiate: with a loss scale, the loss multiplied by it.
    ///
    /// # Errors
    /// Errors from candle.
    fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        Ok(loss.clone())
    }

    /// Whether it takes f32 gradients for f16 and bf16 parameters. A trainer then hands over its f32 sums without conversion.
    fn takes_f32(&self) -> bool {
        false
    }

    /// Whether [`load_state`](Self::load_state) puts back all that an update changes in it, as by default where it saves anything. After an
    /// interrupted update, a trainer whose optimizer does not is replaced rather than loaded.
    #[doc(hidden)]
    fn is_restored(&self) -> bool {
        let saved = self.state();
        saved.is_ok_and(|it| !it.tensors.is_empty() || !it.metadata.is_empty())
    }

    /// The learning rate of the next update, for reports; `None` if unknown.
    fn learning_rate(&self) -> Option<f64> {
        None
    }

    /// The global norm of the last update's gradients, before clipping and without the loss scale, for reports; NaN or infinite if a
    /// gradient was not finite. `None` if it was not computed, or if only a device knows it.
    fn gradient_norm(&self) -> Option<f64> {
        None
    }

    /// Ways to make it use less memory, for the error of a trainer in which a single sample does not fit.
    fn remedies(&self) -> Vec<Remedy> {
        Vec::new()
    }

    /// Bytes of the state that it keeps, for reports; `None` if unknown.
    fn state_bytes(&self) -> Option<u64> {
        None
    }

    /// A copy of its state, to save; of a sharded optimizer, its part of the whole. Empty by default.
    ///
    /// # Errors
    /// Errors from copying.
    fn state(&self) -> Result<StateDict> {
        Ok(StateDict::default())
    }

    /// Continues from saved state: of a sharded optimizer the whole, or its own part as [`state`](Self::state) has it. Ignores it by default.
    ///
    /// # Errors
    /// [`StateError`](crate::error::StateError) if the state does not fit. Nothing has changed then.
    fn load_state(&mut self, _: &StateDict) -> Result<()> {
        Ok(())
    }
}

/// The error for an optimizer that keeps state for whole parameters alone.
pub(super) fn not_sharded(optimizer: &str, reason: &str) -> Error {
    invalid!(
        Optimizer,
        "{optimizer} cannot be sharded over ranks: {reason}"
    )
}

/// An optimizer that is chosen at run time.
impl<O: Commit + ?Sized> Commit for Box<O> {
    fn parameters(&self) -> &[Parameter] {
        (**self).parameters()
    }

    fn frozen(&self) -> Vec<Parameter> {
        (**self).frozen()
    }

    fn check(&mut self, gradients: &GradStore) -> Result<()> {
        (**self).check(gradients)
    }

    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        (**self).commit(gradients)
    }

    fn shard(&mut self, shard: &Shard, state: Option<&StateDict>) -> Result<()> {
        (**self).shard(shard, state)
    }

    fn describe(&self) -> Vec<String> {
        (**self).describe()
    }

    fn is_sharded(&self) -> bool {
        (**self).is_sharded()
    }

    fn is_restored(&self) -> bool {
        (**self).is_restored()
    }

    fn measure(&mut self, gradients: &GradStore, shard: &Shard) -> Result<Option<f64>> {
        (**self).measure(gradients, shard)
    }

    fn commit_measured(&mut self, gradients: &GradStore, squares: f64) -> Result<Committed> {
        (**self).commit_measured(gradients, squares)
    }

    fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        (**self).scale_loss(loss)
    }

    fn takes_f32(&self) -> bool {
        (**self).takes_f32()
    }

    fn learning_rate(&self) -> Option<f64> {
        (**self).learning_rate()
    }

    fn gradient_norm(&self) -> Option<f64> {
        (**self).gradient_norm()
    }

    fn remedies(&self) -> Vec<Remedy> {
        (**self).remedies()
    }

    fn state_bytes(&self) -> Option<u64> {
        (**self).state_bytes()
    }

    fn state(&self) -> Result<StateDict> {
        (**self).state()
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        (**self).load_state(state)
    }
}
