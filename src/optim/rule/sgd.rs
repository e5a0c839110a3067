//! Stochastic gradient descent as in PyTorch: the first step takes the gradient as the momentum, without dampening.

use super::{Algorithm, HyperParameter, Range, Rates, Rule, hyper_parameters};
use crate::optim::coded::Code;
use crate::optim::cpu::{Elementwise, Real};

/// Hyper-parameters of [`Sgd`](crate::optim::Sgd), as in PyTorch. With momentum 0 there is no state.
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
        Step { rule, rates, add }
    }
}

struct Step {
    rule: ParamsSgd,
    rates: Rates,
    /// Part of the gradient that goes into the momentum.
    add: f64,
}

impl Elementwise for Step {
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
