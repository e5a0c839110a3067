use candle_core::backprop::GradStore;
use candle_core::{DType, Storage, Tensor, Var};

use super::adjustment::Adjustment;
use super::held::{Halves, Held};
use crate::error::{OptimizerError, ParameterError, Phase, Result};
use crate::optim::rule::{Kept, Range, Rates, Rule};
use crate::optim::{GroupOptions, Moments, Parameter};
use crate::testing;

/// The name of the master weights in saved state.
pub const MASTER: &str = "master";

/// The parameters of an optimizer and the way in which it updates them.
#[derive(Debug)]
pub struct Setup<R> {
    pub rule: R,
    pub groups: Vec<GroupOptions>,
    /// The parameters of all groups, in the order in which they were given.
    pub parameters: Vec<Managed>,
    /// The memory of all parameters, sorted.
    pub memory: Vec<usize>,
    pub adjustment: Adjustment,
    pub halves: Halves,
}

impl<R: Rule> Setup<R> {
    pub fn is_frozen(&self, parameter: &Managed) -> bool {
        let options = self.groups.get(parameter.group);
        options.is_some_and(|options| options.frozen)
    }

    /// The parameters that are not frozen.
    pub fn updated(&self) -> impl Iterator<Item = &Managed> {
        self.parameters.iter().filter(|p| !self.is_frozen(p))
    }

    /// The parameters that are not frozen, for the user.
    pub fn names(&self) -> Vec<Parameter> {
        self.updated().map(Managed::parameter).collect()
    }

    /// The parameters that are frozen, for the user.
    pub fn frozen(&self) -> Vec<Parameter> {
        let frozen = self.parameters.iter().filter(|p| self.is_frozen(p));
        frozen.map(Managed::parameter).collect()
    }

    /// Returns the gradient of a parameter, and `None` if the parameter is frozen or has no elements.
    pub fn gradient<'a>(&self, parameter: &Managed, store: &'a GradStore) -> Option<&'a Tensor> {
        let gradient = store.get(&parameter.var)?;
        (parameter.len > 0 && !self.is_frozen(parameter)).then_some(gradient)
    }

    pub fn rates(&self, parameter: &Managed) -> Rates {
        let [learning_rate, weight_decay, ..] = self.rule.numbers();
        let options = self.groups.get(parameter.group);
        let options = options.copied().unwrap_or_default();
        Rates {
            learning_rate: learning_rate * options.learning_rate_factor,
            weight_decay: options.weight_decay.unwrap_or(weight_decay),
        }
    }

    /// Checks everything that could make an update fail.
    pub fn check(&self, gradients: &GradStore) -> Result<()> {
        // candle's method that sets the learning rate returns no error.
        let [learning_rate, ..] = self.rule.numbers();
        Range::NOT_NEGATIVE.check(R::NAME, "lr", learning_rate)?;
        for group in &self.groups {
            let rate = learning_rate * group.learning_rate_factor;
            Range::NOT_NEGATIVE.check(R::NAME, "lr * learning_rate_factor", rate)?;
        }
        for parameter in self.updated() {
            testing::inject(Phase::Optimizer)?;
            if let Some(gradient) = self.gradient(parameter, gradients) {
                parameter.check(gradient, &self.memory)?;
            }
        }
        Ok(())
    }

    /// Whether the rule keeps the same tensors with these hyper-parameters.
    pub fn keeps_state_of(&self, rule: &R) -> bool {
        self.parameters.iter().all(|parameter| {
            let kept = parameter.by_rule().iter().map(|held| &held.kept);
            kept.eq(rule.state(parameter.var.dims()).iter())
        })
    }
}

/// A parameter of an optimizer.
#[derive(Debug, Clone)]
pub struct Managed {
    pub name: String,
    pub var: Var,
    pub group: usize,
    /// The Var's first element, for candle's in-place operations: they allocate a list of axes, which is empty for a single element,
    /// and give access to the whole storage.
    pub handle: Tensor,
    /// The offset of its elements in that storage.
    pub start: usize,
    pub len: usize,
    /// The tensors that the optimizer keeps for it: those of the rule, then the master weights.
    pub kept: Vec<Held>,
    /// Whether its moments are in host memory, although it is on a GPU.
    pub on_host: bool,
}

impl Managed {
    fn parameter(&self) -> Parameter {
        Parameter::new(&self.name, self.var.clone())
    }

    pub fn new<R: Rule>(
        rule: &R,
        Parameter { name, var }: Parameter,
        group: usize,
        moments: Option<Moments>,
        halves: Halves,
    ) -> Result<Self> {
        let full = match var.dtype() {
            DType::F64 => DType::F64,
            DType::F32 | DType::F16 | DType::BF16 => DType::F32,
            dtype => {
                let parameter = name;
                return Err(ParameterError::DType { parameter, dtype }.into());
            }
        };
        let moments = moments.unwrap_or(Moments::Float(full));
        let (dtype, is_kept) = match moments {
            Moments::Float(DType::BF16) => (DType::BF16, full == DType::F32),
            Moments::Float(dtype) => (dtype, dtype == full),
            Moments::EightBit => (DType::U8, full == DType::F32),
        };
        if !is_kept {
            return Err(OptimizerError::Moments {
                parameter: name,
                parameter_dtype: var.dtype(),
                dtype,
            }
            .into());
        }
        if halves == Halves::Stochastic && var.dtype() == DType::F16 {
            return Err(OptimizerError::Rounding(name).into());
        }
        let kept = rule.state(var.dims()).into_iter();
        let kept = kept.map(|kept| Held::new(kept, moments, full));
        let master = Held::plain(Kept::new(MASTER, var.dims()), full);
        let has_master = halves == Halves::Masters && var.dtype() != full;
        let kept = kept.chain(has_master.then_some(master));
        let Some((start, end)) = var.layout().contiguous_offsets() else {
            return Err(OptimizerError::NotContiguous(name).into());
        };
        let flat = var.as_detached_tensor().flatten_all()?;
        Ok(Self {
            handle: flat.narrow(0, 0, flat.elem_count().min(1))?,
            start,
            len: end - start,
            kept: kept.collect(),
            on_host: false,
            name,
            var,
            group,
        })
    }

    /// `occupied` is the memory of all parameters, sorted.
    fn check(&self, gradient: &Tensor, occupied: &[usize]) -> Result<()> {
        let (var, parameter) = (&self.var, || self.name.clone());
        let is_half = matches!(var.dtype(), DType::F16 | DType::BF16);
        let error = if gradient.shape() != var.shape() {
            OptimizerError::GradientShape {
                parameter: parameter(),
                expected: var.shape().clone(),
                found: gradient.shape().clone(),
            }
        } else if gradient.dtype() != var.dtype() && !(is_half && gradient.dtype() == DType::F32) {
            OptimizerError::GradientDType {
                parameter: parameter(),
                expected: var.dtype(),
                found: gradient.dtype(),
            }
        } else if !var.device().same_device(gradient.device()) {
            OptimizerError::GradientDevice {
                parameter: parameter(),
                expected: var.device().location(),
                found: gradient.device().location(),
            }
        } else if occupied.binary_search(&memory(gradient)).is_ok() {
            // candle refuses the parameter's own memory. Another parameter's memory may be updated before it is read.
            OptimizerError::GradientShared(parameter())
        } else {
            return Ok(());
        };
        Err(error.into())
    }

    /// The tensors that the rule keeps for it: all but the master weights.
    pub fn by_rule(&self) -> &[Held] {
        match self.kept.as_slice() {
            [by_rule @ .., master] if master.kept.name == MASTER => by_rule,
            all => all,
        }
    }

    /// Bytes of its moments, wherever they are.
    pub fn moment_bytes(&self) -> u64 {
        let moments = self.kept.iter().filter(|held| held.kept.moment.is_some());
        moments.map(Held::bytes).sum()
    }

    /// Bytes that are kept for it in host memory, although it is on a GPU.
    pub fn host_bytes(&self) -> u64 {
        if self.on_host { self.moment_bytes() } else { 0 }
    }

    /// Bytes of all tensors that are kept for it on its device.
    pub fn kept_bytes(&self) -> u64 {
        let all: u64 = self.kept.iter().map(Held::bytes).sum();
        all - self.host_bytes()
    }
}

/// The address of a tensor's storage: the same for all views of it, as long as it lives.
pub fn memory(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref::<Storage>(&storage).addr()
}
