//! Any optimizer of candle in a trainer, with what it cannot do: undo half an update, and save its state.

use std::sync::Once;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Error as CandleError, Result as CandleResult, Tensor};
use candle_nn::Optimizer;

use super::rule::Range;
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
    clip_norm: Option<f64>,
    gradient_norm: Option<f64>,
}

impl<O: Optimizer> Foreign<O> {
    /// Wraps an optimizer; `vars` are the Vars that it was made with. Integer Vars are skipped, as candle's optimizers do: they are not
    /// saved with the model either, unless a trainer has them as [buffers](crate::train::AdaptiveTrainerBuilder::buffers). The parameters
    /// of a frozen group are saved and not updated. The group's other options have no effect.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom::Foreign;
    /// use candle_headroom::optim::Commit;
    /// use candle_nn::{Optimizer, ParamsAdamW, VarBuilder, VarMap, linear};
    ///
    /// let varmap = VarMap::new();
    /// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let adamw = candle_nn::AdamW::new(varmap.all_vars(), ParamsAdamW::default())?;
    /// let optimizer = Foreign::new(adamw, &varmap);
    /// let names = optimizer.parameters().iter().map(|parameter| parameter.name.as_str());
    /// assert!(names.eq(["bias", "weight"]));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn new(optimizer: O, vars: impl Into<Group>) -> Self {
        let group: Group = vars.into();
        let is_frozen = group.options.frozen;
        let floats = group.named(0).filter(|p| p.var.dtype().is_float());
        let (frozen, parameters) = floats.partition(|_| is_frozen);
        Self {
            optimizer,
            parameters,
            frozen,
            clip_norm: None,
            gradient_norm: None,
        }
    }

    /// Scales all gradients down if their global norm is above this, as PyTorch's `clip_grad_norm_` does, and skips a step with a gradient
    /// that is not finite. Each update then waits for the device, and takes memory for the scaled gradients. Norms are computed in f32
    /// (f64 for f64 gradients).
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Foreign;
    /// use candle_headroom::optim::Commit;
    /// use candle_nn::{Optimizer, SGD};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let sgd = SGD::new(vec![w.clone()], 0.1)?;
    /// let mut optimizer = Foreign::new(sgd, vec![w.clone()]).clip_norm(1.)?;
    /// optimizer.commit(&w.sqr()?.backward()?)?; // a gradient of 6 counts as one of 1
    /// assert!((w.to_scalar::<f32>()? - 2.9).abs() < 1e-5);
    /// assert_eq!(optimizer.gradient_norm(), Some(6.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// For a norm that is not finite and above 0 ([`is_optimizer`](crate::Error::is_optimizer)).
    pub fn clip_norm(mut self, norm: f64) -> Result<Self> {
        Range::POSITIVE.check("Foreign", "clip_norm", norm)?;
        self.clip_norm = Some(norm);
        Ok(self)
    }

    /// The wrapped optimizer.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Foreign;
    /// use candle_nn::{Optimizer, SGD};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let sgd = SGD::new(vec![w.clone()], 0.1)?;
    /// let optimizer = Foreign::new(sgd, vec![w]);
    /// assert_eq!(optimizer.optimizer().learning_rate(), 0.1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// The wrapped optimizer, for example to change its hyper-parameters.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Foreign;
    /// use candle_nn::{Optimizer, ParamsAdamW};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let adamw = candle_nn::AdamW::new(vec![w.clone()], ParamsAdamW::default())?;
    /// let mut optimizer = Foreign::new(adamw, vec![w]);
    /// let params = ParamsAdamW { weight_decay: 0., ..ParamsAdamW::default() };
    /// optimizer.optimizer_mut().set_params(params);
    /// assert_eq!(optimizer.optimizer().params().weight_decay, 0.);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// The learning rate.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Foreign;
    /// use candle_nn::{Optimizer, SGD};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let sgd = SGD::new(vec![w.clone()], 0.1)?;
    /// assert_eq!(Foreign::new(sgd, vec![w]).learning_rate(), 0.1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate()
    }

    /// Sets the learning rate, as a schedule does before each update.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::{Foreign, LearningRate};
    /// use candle_nn::{Optimizer, SGD};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let sgd = SGD::new(vec![w.clone()], 0.1)?;
    /// let mut optimizer = Foreign::new(sgd, vec![w]);
    /// let schedule = LearningRate::builder(0.1).linear(100).build()?;
    /// optimizer.set_learning_rate(schedule.at(100));
    /// assert_eq!(optimizer.learning_rate(), 0.);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        self.optimizer.set_learning_rate(learning_rate);
    }

    /// Returns the wrapped optimizer.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Foreign;
    /// use candle_nn::{Optimizer, SGD};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let sgd = SGD::new(vec![w.clone()], 0.1)?;
    /// let optimizer = Foreign::new(sgd, vec![w]);
    /// let sgd: SGD = optimizer.into_inner();
    /// assert_eq!(sgd.learning_rate(), 0.1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
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
        let mut clipped = None;
        if let Some(most) = self.clip_norm {
            let norm = global_norm(&self.parameters, gradients)?;
            self.gradient_norm = Some(norm);
            if !norm.is_finite() {
                return Ok(Committed::Skipped);
            }
            // With the 1e-6 that guards against a norm of 0.
            let factor = most / (norm + 1e-6);
            if factor < 1. {
                clipped = Some(scaled(&self.parameters, gradients, factor)?);
            }
        }
        let stepped = self.optimizer.step(clipped.as_ref().unwrap_or(gradients));
        stepped.map_err(interrupted)?;
        Ok(Committed::Applied)
    }

    fn learning_rate(&self) -> Option<f64> {
        Some(self.optimizer.learning_rate())
    }

    fn gradient_norm(&self) -> Option<f64> {
        self.gradient_norm
    }
}

/// The error of an update of which a part was applied.
pub(super) fn interrupted(error: CandleError) -> Error {
    UpdateInterrupted::with(Error::from(error).in_phase(Phase::Optimizer))
}

fn global_norm(parameters: &[Parameter], gradients: &GradStore) -> CandleResult<f64> {
    let found = || parameters.iter().filter_map(|p| gradients.get(&p.var));
    // Not all devices have f64.
    let full = match found().any(|gradient| gradient.dtype() == DType::F64) {
        true => DType::F64,
        false => DType::F32,
    };
    let squares = found().map(|gradient| gradient.to_dtype(full)?.sqr()?.sum_all());
    let squares: Vec<_> = squares.collect::<CandleResult<_>>()?;
    if squares.is_empty() {
        return Ok(0.);
    }
    let sum = Tensor::stack(&squares, 0)?.sum_all()?;
    let sum = sum.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    Ok(sum.to_scalar::<f64>()?.sqrt())
}

/// The parameters' gradients times `factor`.
fn scaled(parameters: &[Parameter], gradients: &GradStore, factor: f64) -> CandleResult<GradStore> {
    let mut scaled = GradStore::default();
    for Parameter { var, .. } in parameters {
        if let Some(gradient) = gradients.get(var) {
            scaled.insert(var, (gradient * factor)?);
        }
    }
    Ok(scaled)
}
