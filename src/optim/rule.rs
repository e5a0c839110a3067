//! The update rules: Adam (Kingma and Ba 2014, arXiv 1412.6980) and AdamW (Loshchilov and Hutter 2017, arXiv 1711.05101), which differ in where the
//! weight decay goes, Lion, and stochastic gradient descent as in PyTorch, whose first step takes the gradient as the momentum, without dampening.
//!
//! Bias corrections are computed in f64, by squaring, as the kernels do: CPU and CUDA give the same bits.

use std::fmt::Debug;

use candle_nn::ParamsAdamW;

use super::coded::Code;
use super::cpu::{Elementwise, Real};
use crate::error::{Result, invalid};

/// An optimizer's hyper-parameters, whose type names its update rule. Only this crate implements it.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::Result;
/// use candle_headroom::optim::{Algorithm, Commit, Fused, ParamsLion, ParamsSgd};
///
/// /// Minimizes w² by one step, with any fused optimizer.
/// fn step<A: Algorithm>(params: A) -> Result<f32> {
///     let w = Var::new(3f32, &Device::Cpu)?;
///     let mut optimizer = Fused::builder(vec![w.clone()]).params(params).learning_rate(0.25).build()?;
///     optimizer.commit(&w.sqr()?.backward()?)?;
///     Ok(w.to_scalar::<f32>()?)
/// }
///
/// assert_eq!(step(ParamsSgd::default())?, 1.5); // 3 − 0.25 · 6
/// assert_eq!(step(ParamsLion::default())?, 2.75); // 3 − 0.25
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Algorithm: Rule {}

/// An update rule, and its hyper-parameters.
pub trait Rule: Clone + Debug + Default + Send + Sync + 'static {
    /// The optimizer's name; in lower case also that of its kernel `decide_…`.
    const NAME: &'static str;
    /// The name of the file with its kernels.
    const KERNELS: &'static str;
    /// Whether its update depends on how many there were. PyTorch saves no `step` for one that does not.
    const COUNTS_STEPS: bool = true;

    /// The hyper-parameters, in the order of the kernels: the learning rate first, then the weight decay.
    fn hyper_parameters(&mut self) -> impl Iterator<Item = HyperParameter<'_>>;

    /// The values of the hyper-parameters, 0 beyond the last one. No rule has more than 8.
    fn numbers(&self) -> [f64; 8] {
        let mut numbers = [0.; 8];
        for (number, (_, _, value)) in numbers.iter_mut().zip(self.clone().hyper_parameters()) {
            *number = value.get();
        }
        numbers
    }

    fn check(&mut self) -> Result<()> {
        (self.hyper_parameters())
            .try_for_each(|(name, range, value)| range.check(Self::NAME, name, value.get()))
    }

    /// The moments that it keeps of each parameter, by their names in PyTorch, and their code where they
    /// have 8 bits. Each has the parameter's shape; there are at most two.
    fn moments(&self) -> &'static [(&'static str, Code)];

    /// The `step`-th update of a parameter, counted from 1.
    fn step(&self, rates: Rates, step: u64) -> impl Elementwise;
}

/// Numbers that differ between groups of parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub learning_rate: f64,
    pub weight_decay: f64,
}

/// The values that a number may have.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    pub words: &'static str,
    holds: fn(f64) -> bool,
}

impl Range {
    pub const NOT_NEGATIVE: Self = Self::new("finite and at least 0", |value| value >= 0.);
    pub const POSITIVE: Self = Self::new("finite and above 0", |value| value > 0.);
    pub const FRACTION: Self = Self::new("at least 0 and below 1", |v| (0. ..1.).contains(&v));
    pub const PART: Self = Self::new("above 0 and at most 1", |v| v > 0. && v <= 1.);
    pub const MULTIPLE: Self = Self::new("finite and at least 1", |value| value >= 1.);
    /// A loss is multiplied in f32.
    pub const SCALE: Self = Self::new("above 0 and in the range of f32", |value| {
        value > 0. && (value as f32).is_normal()
    });
    pub const FLAG: Self = Self::new("0 or 1", |value| value == 0. || value == 1.);

    const fn new(words: &'static str, holds: fn(f64) -> bool) -> Self {
        Self { words, holds }
    }

    pub fn holds(self, value: f64) -> bool {
        value.is_finite() && (self.holds)(value)
    }

    /// Checks a value, if there is one.
    pub fn check(self, optimizer: &str, name: &str, value: impl Into<Option<f64>>) -> Result<()> {
        match value.into() {
            Some(value) if !self.holds(value) => Err(invalid!(
                Optimizer,
                "`{name}` of {optimizer} must be {}, got {value}",
                self.words
            )),
            _ => Ok(()),
        }
    }
}

/// A hyper-parameter: its name, its range and its value.
pub type HyperParameter<'a> = (&'static str, Range, &'a mut dyn Value);

/// The value of a hyper-parameter as a number; a flag is 0 or 1.
pub trait Value {
    fn get(&self) -> f64;
    fn set(&mut self, value: f64);
}

impl Value for f64 {
    fn get(&self) -> f64 {
        *self
    }

    fn set(&mut self, value: f64) {
        *self = value;
    }
}

impl Value for bool {
    fn get(&self) -> f64 {
        f64::from(*self)
    }

    fn set(&mut self, value: f64) {
        *self = value != 0.;
    }
}

/// Lists the fields that are hyper-parameters, with their ranges: the method of [`Rule`], in the order of the kernels.
macro_rules! hyper_parameters {
    ($($field:ident: $range:ident),+) => {
        fn hyper_parameters(&mut self) -> impl Iterator<Item = HyperParameter<'_>> {
            let all: [HyperParameter<'_>; _] = [
                $((stringify!($field), Range::$range, &mut self.$field)),+
            ];
            all.into_iter()
        }
    };
}

/// Hyper-parameters of [`Adam`](crate::optim::Adam), with PyTorch's defaults.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::optim::{Adam, ParamsAdam};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let params = ParamsAdam { beta2: 0.98, eps: 1e-9, ..ParamsAdam::default() };
/// let optimizer = Adam::builder(vec![w]).params(params).build()?;
/// assert_eq!((optimizer.learning_rate(), optimizer.params().beta2), (1e-3, 0.98));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamsAdam {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f64,
}

impl Default for ParamsAdam {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.,
        }
    }
}

const MOMENTS: &[(&str, Code)] = &[("exp_avg", Code::Signed), ("exp_avg_sq", Code::Unsigned)];

impl Algorithm for ParamsAdam {}

impl Rule for ParamsAdam {
    const NAME: &'static str = "Adam";
    const KERNELS: &'static str = "adam";

    hyper_parameters!(
        lr: NOT_NEGATIVE, weight_decay: NOT_NEGATIVE, beta1: FRACTION, beta2: FRACTION,
        eps: NOT_NEGATIVE
    );

    fn moments(&self) -> &'static [(&'static str, Code)] {
        MOMENTS
    }

    fn step(&self, rates: Rates, step: u64) -> impl Elementwise {
        AdamStep::new(self.numbers(), [1., rates.weight_decay], rates, step)
    }
}

impl Algorithm for ParamsAdamW {}

impl Rule for ParamsAdamW {
    const NAME: &'static str = "AdamW";
    const KERNELS: &'static str = "adam";

    hyper_parameters!(
        lr: NOT_NEGATIVE, weight_decay: NOT_NEGATIVE, beta1: FRACTION, beta2: FRACTION,
        eps: NOT_NEGATIVE
    );

    fn moments(&self) -> &'static [(&'static str, Code)] {
        MOMENTS
    }

    fn step(&self, rates: Rates, step: u64) -> impl Elementwise {
        let keep = 1. - rates.learning_rate * rates.weight_decay;
        AdamStep::new(self.numbers(), [keep, 0.], rates, step)
    }
}

struct AdamStep {
    beta1: f64,
    beta2: f64,
    eps: f64,
    /// Learning rate over the bias correction of the first moment.
    size: f64,
    /// One over the square root of the bias correction of the second moment.
    unbias: f64,
    /// Factor on the parameter: decoupled weight decay.
    keep: f64,
    /// Factor of the parameter in the gradient: coupled weight decay.
    penalty: f64,
}

impl AdamStep {
    fn new(numbers: [f64; 8], [keep, penalty]: [f64; 2], rates: Rates, step: u64) -> Self {
        let [_, _, beta1, beta2, eps, ..] = numbers;
        Self {
            beta1,
            beta2,
            eps,
            size: rates.learning_rate / (1. - power(beta1, step)),
            unbias: 1. / (1. - power(beta2, step)).sqrt(),
            keep,
            penalty,
        }
    }
}

impl Elementwise for AdamStep {
    #[inline(always)]
    fn update<C: Real>(
        &self,
        adjust: impl Fn(C) -> C,
        parameter: &mut [C],
        gradient: &[C],
        [first, second]: [&mut [C]; 2],
    ) {
        let [beta1, beta2, eps] = [self.beta1, self.beta2, self.eps].map(C::from_f64);
        let [size, unbias] = [self.size, self.unbias].map(C::from_f64);
        let [keep, penalty] = [self.keep, self.penalty].map(C::from_f64);
        // In f64, because 1 - 0.999 in f32 is off by 5 in 100,000.
        let [add1, add2] = [1. - self.beta1, 1. - self.beta2].map(C::from_f64);
        let moments = first.iter_mut().zip(second);
        for ((p, g), (m, v)) in parameter.iter_mut().zip(gradient).zip(moments) {
            let g = adjust(*g) + penalty * *p;
            *m = beta1 * *m + add1 * g;
            *v = beta2 * *v + add2 * g * g;
            *p = keep * *p - size * *m / (v.sqrt() * unbias + eps);
        }
    }
}

/// `base` to a whole power, by squaring. The kernels do the same, so that both give the same bits.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1., base);
    while exponent > 0 {
        if exponent % 2 == 1 {
            result *= square;
        }
        square *= square;
        exponent /= 2;
    }
    result
}

/// Hyper-parameters of [`Lion`](crate::optim::Lion): Algorithm 2 of Chen et al. 2023 (arXiv 2302.06675), with its defaults.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::optim::{Lion, ParamsLion};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// // For a model that AdamW trains with a rate of 3e-4 and a decay of 0.1.
/// let params = ParamsLion { lr: 3e-5, weight_decay: 1., ..ParamsLion::default() };
/// let optimizer = Lion::builder(vec![w]).params(params).build()?;
/// assert_eq!((optimizer.learning_rate(), optimizer.params().beta2), (3e-5, 0.99));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamsLion {
    /// Learning rate. The authors advise a tenth to a third of AdamW's.
    pub lr: f64,
    /// Weight of the momentum in a step's direction.
    pub beta1: f64,
    /// Decay of the momentum.
    pub beta2: f64,
    /// Decoupled weight decay. The authors advise three to ten times AdamW's.
    pub weight_decay: f64,
}

impl Default for ParamsLion {
    fn default() -> Self {
        Self {
            lr: 1e-4,
            beta1: 0.9,
            beta2: 0.99,
            weight_decay: 0.,
        }
    }
}

impl Algorithm for ParamsLion {}

impl Rule for ParamsLion {
    const NAME: &'static str = "Lion";
    const KERNELS: &'static str = "lion";

    hyper_parameters!(
        lr: NOT_NEGATIVE, weight_decay: NOT_NEGATIVE, beta1: FRACTION, beta2: FRACTION
    );

    fn moments(&self) -> &'static [(&'static str, Code)] {
        &[("exp_avg", Code::Signed)]
    }

    fn step(&self, rates: Rates, _: u64) -> impl Elementwise {
        LionStep(*self, rates)
    }
}

struct LionStep(ParamsLion, Rates);

impl Elementwise for LionStep {
    #[inline(always)]
    fn update<C: Real>(
        &self,
        adjust: impl Fn(C) -> C,
        parameter: &mut [C],
        gradient: &[C],
        [momentum, _]: [&mut [C]; 2],
    ) {
        let Self(ParamsLion { beta1, beta2, .. }, rates) = *self;
        let keep = C::from_f64(1. - rates.learning_rate * rates.weight_decay);
        let lr = C::from_f64(rates.learning_rate);
        let [add1, add2] = [1. - beta1, 1. - beta2].map(C::from_f64);
        let [beta1, beta2] = [beta1, beta2].map(C::from_f64);
        for ((p, g), m) in parameter.iter_mut().zip(gradient).zip(momentum) {
            let g = adjust(*g);
            let direction = sign(beta1 * *m + add1 * g);
            *p = keep * *p - lr * direction;
            *m = beta2 * *m + add2 * g;
        }
    }
}

/// ±1, 0 for 0, and NaN for NaN.
fn sign<C: Real>(value: C) -> C {
    let zero = C::default();
    match value {
        value if value > zero => C::from_f64(1.),
        value if value < zero => C::from_f64(-1.),
        value if value == zero => zero,
        nan => nan,
    }
}

/// Hyper-parameters of [`Sgd`](crate::optim::Sgd), as in PyTorch. With momentum 0 there is no state.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::Sgd;
/// use candle_headroom::optim::{Commit, ParamsSgd};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let params = ParamsSgd { lr: 0.25, momentum: 0.5, nesterov: true, ..ParamsSgd::default() };
/// let mut optimizer = Sgd::builder(vec![w.clone()]).params(params).build()?;
/// optimizer.commit(&w.sqr()?.backward()?)?;
/// assert_eq!(w.to_scalar::<f32>()?, 0.75); // 3 − 0.25 · (6 + 0.5 · 6)
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamsSgd {
    /// Learning rate.
    pub lr: f64,
    /// Factor on the momentum in each step; 0 for none.
    pub momentum: f64,
    /// Part of each gradient, but a parameter's first, that does not go into the momentum.
    pub dampening: f64,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
}

impl Default for ParamsSgd {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            momentum: 0.,
            dampening: 0.,
            weight_decay: 0.,
            nesterov: false,
        }
    }
}

impl Algorithm for ParamsSgd {}

impl Rule for ParamsSgd {
    const NAME: &'static str = "Sgd";
    const KERNELS: &'static str = "sgd";
    const COUNTS_STEPS: bool = false;

    hyper_parameters!(
        lr: NOT_NEGATIVE, weight_decay: NOT_NEGATIVE, momentum: NOT_NEGATIVE,
        dampening: NOT_NEGATIVE, nesterov: FLAG
    );

    fn moments(&self) -> &'static [(&'static str, Code)] {
        match self.momentum {
            0. => &[],
            _ => &[("momentum_buffer", Code::Signed)],
        }
    }

    fn step(&self, rates: Rates, step: u64) -> impl Elementwise {
        let add = if step == 1 { 1. } else { 1. - self.dampening };
        let rule = *self;
        SgdStep { rule, rates, add }
    }
}

struct SgdStep {
    rule: ParamsSgd,
    rates: Rates,
    /// Part of the gradient that goes into the momentum.
    add: f64,
}

impl Elementwise for SgdStep {
    #[inline(always)]
    fn update<C: Real>(
        &self,
        adjust: impl Fn(C) -> C,
        parameter: &mut [C],
        gradient: &[C],
        [buffer, _]: [&mut [C]; 2],
    ) {
        let rates = [self.rates.learning_rate, self.rates.weight_decay];
        let [lr, penalty] = rates.map(C::from_f64);
        let [momentum, add] = [self.rule.momentum, self.add].map(C::from_f64);
        let pairs = parameter.iter_mut().zip(gradient);
        if self.rule.momentum == 0. {
            for (p, g) in pairs {
                *p -= lr * (adjust(*g) + penalty * *p);
            }
            return;
        }
        let nesterov = self.rule.nesterov;
        for ((p, g), b) in pairs.zip(buffer) {
            let g = adjust(*g) + penalty * *p;
            *b = momentum * *b + add * g;
            let direction = if nesterov { g + momentum * *b } else { *b };
            *p -= lr * direction;
        }
    }
}
