use super::{Algorithm, HyperParameter, Range, Rates, Rule, hyper_parameters};
use crate::optim::coded::Code;
use crate::optim::cpu::{Elementwise, Real};

/// Hyper-parameters of [`Lion`](crate::optim::Lion): Algorithm 2 of Chen et al. 2023 (arXiv 2302.06675), with its defaults.
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
        Step(*self, rates)
    }
}

struct Step(ParamsLion, Rates);

impl Elementwise for Step {
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
