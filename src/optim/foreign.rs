use std::sync::Once;

use candle_core::backprop::GradStore;
use candle_nn::Optimizer;

use super::{Commit, Committed, Group, Parameter, StateDict};
use crate::error::{Error, Phase, Result, UpdateInterrupted};

/// Any [`candle_nn::Optimizer`] with the Vars that it updates, for a trainer.
///
/// Such an optimizer updates Var by Var and cannot undo it, so an error in it is [`UpdateInterrupted`]: the trainer refuses
/// further updates until its optimizer is replaced. Saved state holds nothing of it, which is logged once: a resumed run has the saved
/// parameters and a new optimizer, and does not equal the uninterrupted one unless the optimizer keeps no state, as [`candle_nn::SGD`].
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::optim::Commit;
/// use candle_headroom::Foreign;
/// use candle_nn::{Optimizer, SGD};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let sgd = SGD::new(vec![w.clone()], 0.1)?;
/// let mut optimizer = Foreign::new(sgd, vec![w.clone()]);
/// optimizer.commit(&w.sqr()?.backward()?)?;
/// assert_eq!(w.to_scalar::<f32>()?, 3. - 0.1 * 6.);
/// optimizer.set_learning_rate(0.01);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Foreign<O> {
    optimizer: O,
    parameters: Vec<Parameter>,
    frozen: Vec<Parameter>,
}

impl<O: Optimizer> Foreign<O> {
    /// Wraps an optimizer; `vars` are the Vars that it was made with. Integer Vars are skipped, as candle's optimizers do: they are not
    /// saved with the model either, unless a trainer has them as [buffers](crate::train::AdaptiveTrainerBuilder::buffers). The parameters
    /// of a frozen group are saved and not updated. The group's other options have no effect.
    pub fn new(optimizer: O, vars: impl Into<Group>) -> Self {
        let group: Group = vars.into();
        let is_frozen = group.options.frozen;
        let floats = group.named(0).filter(|p| p.var.dtype().is_float());
        let (frozen, parameters) = floats.partition(|_| is_frozen);
        Self {
            optimizer,
            parameters,
            frozen,
        }
    }

    /// The wrapped optimizer.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// The wrapped optimizer.
    pub fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// The learning rate.
    pub fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate()
    }

    /// Sets the learning rate, as a schedule does before each update.
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        self.optimizer.set_learning_rate(learning_rate);
    }

    /// Returns the wrapped optimizer.
    pub fn into_inner(self) -> O {
        self.optimizer
    }
}

impl<O: Optimizer> Commit for Foreign<O> {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn frozen(&self) -> Vec<Parameter> {
        self.frozen.clone()
    }

    fn state(&self) -> Result<StateDict> {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            tracing::warn!("the state of an optimizer in `Foreign` is not saved: a resumed run begins with that of a new one");
        });
        Ok(StateDict::default())
    }

    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        let Err(error) = self.optimizer.step(gradients) else {
            return Ok(Committed::Applied);
        };
        match Error::from(error).in_phase(Phase::Optimizer) {
            // After a fault of the device nothing on it can go on.
            fault @ Error::DeviceFault(_) => Err(fault),
            reason => Err(UpdateInterrupted::new(reason).into()),
        }
    }
}
