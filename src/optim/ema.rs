use std::collections::HashMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result as CandleResult, Tensor, Var};

use super::foreign::interrupted;
use super::rule::Range;
use super::state_dict::entry;
use super::{Commit, Committed, Parameter, Shard, StateDict, blend};
use crate::elements::size;
use crate::error::{Error, Remedy, Result, StateError};

/// The name of an average in saved state.
const AVERAGE: &str = "ema";

/// An optimizer that also keeps an exponential moving average (EMA) of each parameter: after each update
/// `average = decay · average + (1 − decay) · parameter`. Averages often evaluate better than the parameters of the last step.
///
/// It is an optimizer around another one, so a trainer updates the averages with the parameters, and they are saved and resumed with
/// the optimizer's state, each as `PARAMETER.ema`. They start from the parameters, and take 4 bytes per element (8 of f64 parameters),
/// also for f16 and bf16 ones. Frozen parameters have none, and thawed ones start anew. A step that the optimizer skips does not count;
/// on CUDA, where only the device knows, it counts as a step that moved nothing.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::AdamW;
/// use candle_headroom::optim::{Commit, Ema};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let adamw = AdamW::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
/// let mut optimizer = Ema::new(adamw, 0.9)?;
/// for _ in 0..10 {
///     optimizer.commit(&w.sqr()?.backward()?)?;
/// }
/// let trained = w.to_scalar::<f32>()?;
/// // The model computes with the averages inside, and with its own parameters again afterwards.
/// let average = optimizer.with_averages(|| Ok(w.to_scalar::<f32>()?))?;
/// assert!(trained < average && average < 3.);
/// assert_eq!(w.to_scalar::<f32>()?, trained);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct Ema<O> {
    optimizer: O,
    decay: f64,
    /// In the order of the optimizer's parameters.
    averages: Vec<(Parameter, Tensor)>,
}

impl<O: Commit> Ema<O> {
    /// Averages the parameters of an optimizer. `decay` is usually 0.99 to 0.9999: an average reaches back about 1 / (1 − decay) steps.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::{Commit, Ema};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let sgd = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.25).build()?;
    /// let mut optimizer = Ema::new(sgd, 0.5)?;
    /// optimizer.commit(&w.sqr()?.backward()?)?; // from 3 to 1.5
    /// assert_eq!(optimizer.averages()?["w"].to_scalar::<f32>()?, 2.25); // 0.5 · 3 + 0.5 · 1.5
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// A decay that is not at least 0 and below 1, or an optimizer that divides its state among ranks
    /// ([`is_optimizer`](Error::is_optimizer)); and errors from copying.
    pub fn new(optimizer: O, decay: f64) -> Result<Self> {
        Range::FRACTION.check("Ema", "decay", decay)?;
        if optimizer.is_sharded() {
            return Err(not_sharded());
        }
        let mut ema = Self {
            optimizer,
            decay,
            averages: Vec::new(),
        };
        ema.follow()?;
        Ok(ema)
    }

    /// The wrapped optimizer.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::{Commit, Ema};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let sgd = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.25).build()?;
    /// let mut optimizer = Ema::new(sgd, 0.999)?;
    /// optimizer.commit(&w.sqr()?.backward()?)?;
    /// assert_eq!(optimizer.optimizer().progress()?.steps, 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// The wrapped optimizer, for example to set its learning rate.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::Ema;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let sgd = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.25).build()?;
    /// let mut optimizer = Ema::new(sgd, 0.999)?;
    /// optimizer.optimizer_mut().set_learning_rate(0.125);
    /// assert_eq!(optimizer.optimizer().learning_rate(), 0.125);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// Returns the wrapped optimizer and drops the averages.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::Ema;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let sgd = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.25).build()?;
    /// let optimizer = Ema::new(sgd, 0.999)?;
    /// let sgd = optimizer.into_inner();
    /// assert_eq!(sgd.learning_rate(), 0.25);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn into_inner(self) -> O {
        self.optimizer
    }

    /// Copies of the averages in their parameters' types, by name, for example to save the averaged model.
    ///
    /// ```
    /// use candle_core::{DType, Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::Ema;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("averaged.safetensors");
    /// let w = Var::ones((2, 3), DType::BF16, &Device::Cpu)?;
    /// let adamw = AdamW::builder(vec![("w", w)]).build()?;
    /// let optimizer = Ema::new(adamw, 0.999)?;
    /// candle_core::safetensors::save(&optimizer.averages()?, &path)?;
    /// let saved = candle_core::safetensors::load(&path, &Device::Cpu)?;
    /// assert_eq!((saved["w"].dims(), saved["w"].dtype()), (&[2, 3][..], DType::BF16));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors from copying.
    pub fn averages(&self) -> Result<HashMap<String, Tensor>> {
        let averages = self.averages.iter().map(|(parameter, average)| {
            let copy = match parameter.var.dtype() {
                same if same == average.dtype() => average.copy()?,
                dtype => average.to_dtype(dtype)?,
            };
            Ok((parameter.name.clone(), copy))
        });
        Ok(averages.collect::<CandleResult<_>>()?)
    }

    /// Runs `work`, such as an evaluation, with the averages in place of the parameters, and puts the parameters back, also after an
    /// error or a panic. Meanwhile a copy of the parameters takes memory. Other threads see the averages too.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::{Commit, Ema};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let sgd = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.25).build()?;
    /// let mut optimizer = Ema::new(sgd, 0.5)?;
    /// optimizer.commit(&w.sqr()?.backward()?)?; // from 3 to 1.5
    /// let seen = optimizer.with_averages(|| Ok(w.to_scalar::<f32>()?))?;
    /// assert_eq!((seen, w.to_scalar::<f32>()?), (2.25, 1.5));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `work`, and errors from copying: if they come before `work`, nothing has changed.
    pub fn with_averages<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let trained = self.averages.iter().map(|(parameter, _)| {
            let values = parameter.var.as_detached_tensor().copy()?;
            Ok((parameter.var.clone(), values))
        });
        let trained = Trained(trained.collect::<CandleResult<_>>()?);
        for (parameter, average) in &self.averages {
            blend(&parameter.var, 0., 1., Some(average))?;
        }
        let done = work();
        trained.put_back()?;
        done
    }

    /// Makes averages for parameters that have none, and drops those of parameters that are no longer updated.
    fn follow(&mut self) -> Result<()> {
        let parameters = self.optimizer.parameters();
        let id = |parameter: &Parameter| parameter.var.id();
        let then = self.averages.iter().map(|(parameter, _)| id(parameter));
        if parameters.iter().map(id).eq(then) {
            return Ok(());
        }
        let old = self.averages.iter();
        let old: HashMap<_, _> = old.map(|(p, average)| (p.var.id(), average)).collect();
        let averages = parameters.iter().map(|parameter| {
            let average = match old.get(&parameter.var.id()) {
                Some(&average) => average.clone(),
                None => full(&parameter.var, parameter.var.as_detached_tensor())?,
            };
            Ok((parameter.clone(), average))
        });
        self.averages = averages.collect::<CandleResult<_>>()?;
        Ok(())
    }

    fn commit_by(&mut self, commit: impl FnOnce(&mut O) -> Result<Committed>) -> Result<Committed> {
        self.follow()?;
        let committed = commit(&mut self.optimizer)?;
        if committed == Committed::Skipped {
            return Ok(committed);
        }
        for (parameter, average) in &self.averages {
            // In f32 the two weights of an f32 average add up to 1, so that it has no bias.
            let keep = match average.dtype() {
                DType::F64 => self.decay,
                _ => f64::from(self.decay as f32),
            };
            blend(average, keep, 1. - keep, Some(parameter.var.as_tensor()))
                .map_err(interrupted)?;
        }
        Ok(committed)
    }
}

/// A copy of `values` in the type of `var`'s average, on its device.
fn full(var: &Var, values: Tensor) -> CandleResult<Tensor> {
    let dtype = match var.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let values = values.to_device(var.device())?.to_dtype(dtype)?;
    values.contiguous()?.copy()
}

/// Parameters that are replaced for a time, with copies of their values. Dropping it puts them back.
struct Trained(Vec<(Var, Tensor)>);

impl Trained {
    fn put_back(mut self) -> CandleResult<()> {
        let all = std::mem::take(&mut self.0);
        all.iter().try_for_each(|(var, values)| var.set(values))
    }
}

impl Drop for Trained {
    fn drop(&mut self) {
        for (var, values) in &self.0 {
            if let Err(error) = var.set(values) {
                tracing::error!(%error, "a parameter still has its average");
            }
        }
    }
}

fn not_sharded() -> Error {
    let reason =
        "each rank keeps the averages of all parameters; build the optimizer without `sharded()`";
    super::commit::not_sharded("Ema", reason)
}

impl<O: Commit> Commit for Ema<O> {
    fn parameters(&self) -> &[Parameter] {
        self.optimizer.parameters()
    }

    fn frozen(&self) -> Vec<Parameter> {
        self.optimizer.frozen()
    }

    fn is_restored(&self) -> bool {
        self.optimizer.is_restored()
    }

    fn check(&mut self, gradients: &GradStore) -> Result<()> {
        self.follow()?;
        self.optimizer.check(gradients)
    }

    /// Updates, then averages. An error of averaging, which only a lost device or a panic leaves possible, is
    /// [`UpdateInterrupted`](crate::error::UpdateInterrupted).
    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        self.commit_by(|optimizer| optimizer.commit(gradients))
    }

    fn shard(&mut self, _: &Shard, _: Option<&StateDict>) -> Result<()> {
        Err(not_sharded())
    }

    fn describe(&self) -> Vec<String> {
        let mut lines = self.optimizer.describe();
        lines.push(format!("parameters are averaged with decay {}", self.decay));
        lines
    }

    fn measure(&mut self, gradients: &GradStore, shard: &Shard) -> Result<Option<f64>> {
        self.optimizer.measure(gradients, shard)
    }

    fn commit_measured(&mut self, gradients: &GradStore, squares: f64) -> Result<Committed> {
        self.commit_by(|optimizer| optimizer.commit_measured(gradients, squares))
    }

    fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        self.optimizer.scale_loss(loss)
    }

    fn takes_f32(&self) -> bool {
        self.optimizer.takes_f32()
    }

    fn learning_rate(&self) -> Option<f64> {
        self.optimizer.learning_rate()
    }

    fn gradient_norm(&self) -> Option<f64> {
        self.optimizer.gradient_norm()
    }

    fn remedies(&self) -> Vec<Remedy> {
        let mut remedies = self.optimizer.remedies();
        let saves = bytes(&self.averages);
        if saves > 0 {
            remedies.push(Remedy::new(
                "no averages of parameters (`Ema`)",
                Some(saves),
            ));
        }
        remedies
    }

    fn state_bytes(&self) -> Option<u64> {
        Some(self.optimizer.state_bytes()? + bytes(&self.averages))
    }

    /// The optimizer's state and the averages, in host memory.
    fn state(&self) -> Result<StateDict> {
        let mut state = self.optimizer.state()?;
        for (parameter, average) in &self.averages {
            let average = match average.device() {
                Device::Cpu => average.copy()?,
                _ => average.to_device(&Device::Cpu)?,
            };
            state
                .tensors
                .insert(entry(&parameter.name, AVERAGE), average);
        }
        Ok(state)
    }

    /// Continues from saved state. The decay stays.
    ///
    /// # Errors
    /// [`StateError`] if an average is missing or has another shape, and those of the optimizer. Nothing has changed then.
    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        let (mut rest, mut error) = (state.clone(), StateError::default());
        let mut loaded = HashMap::new();
        let frozen = self.optimizer.frozen();
        for parameter in self.optimizer.parameters().iter().chain(&frozen) {
            let name = entry(&parameter.name, AVERAGE);
            match rest.tensors.remove(&name) {
                Some(saved) if saved.dims() == parameter.var.dims() && saved.dtype().is_float() => {
                    loaded.insert(parameter.var.id(), full(&parameter.var, saved)?);
                }
                Some(saved) => {
                    let (found, dims) = (saved.dims(), parameter.var.dims());
                    let dtype = saved.dtype();
                    let what = format!("{name} has shape {found:?} of {dtype:?}, not {dims:?}");
                    error.unfit.push(what);
                }
                None => {}
            }
        }
        // The state may freeze or thaw a group: what it updates afterwards needs an average.
        let has = |parameter: &&Parameter| loaded.contains_key(&parameter.var.id());
        let missing = self.optimizer.parameters().iter().filter(|p| !has(p));
        error.missing = missing.map(|p| entry(&p.name, AVERAGE)).collect();
        if !error.is_empty() {
            return Err(error.into());
        }
        self.optimizer.load_state(&rest)?;
        let parameters = self.optimizer.parameters().iter();
        let averages = parameters.filter_map(|parameter| {
            let average = loaded.remove(&parameter.var.id())?;
            Some((parameter.clone(), average))
        });
        self.averages = averages.collect();
        Ok(())
    }
}

fn bytes(averages: &[(Parameter, Tensor)]) -> u64 {
    let bytes = averages.iter().map(|(_, average)| size(average) as u64);
    bytes.sum()
}
