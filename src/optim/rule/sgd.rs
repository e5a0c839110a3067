use super::elementwise::{Elementwise, Rates};
use super::update_rule::{Kept, Kernel, Rule, moment};
use crate::optim::cpu::{Real, Target};

/// Hyper-parameters of [`Sgd`](crate::optim::Sgd), as in PyTorch. With momentum 0 there is no state.
///
/// ```
/// use candle_headroom::optim::ParamsSgd;
///
/// let params = ParamsSgd { lr: 0.1, momentum: 0.9, nesterov: true, ..Default::default() };
/// assert_eq!(params.dampening, 0.);
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

#[derive(Debug, Clone, Copy)]
pub struct SgdStep {
    learning_rate: f64,
    penalty: f64,
    momentum: f64,
    /// Part of the gradient that goes into the momentum.
    add: f64,
    nesterov: bool,
}

impl Rule for ParamsSgd {
    const NAME: &'static str = "Sgd";
    const KERNEL: Kernel = Kernel::Sgd;

    hyper_parameters! {
        lr: NotNegative,
        weight_decay: NotNegative,
        momentum: NotNegative,
        dampening: NotNegative,
        nesterov: Flag,
    }

    fn state(&self, dims: &[usize]) -> Vec<Kept> {
        match self.momentum {
            0. => vec![],
            _ => vec![moment("momentum_buffer", dims)],
        }
    }

    fn apply(&self, rates: Rates, step: u64, target: Target<'_>) {
        target.elementwise::<Self>(&self.at(rates, step), step);
    }
}

impl Elementwise for ParamsSgd {
    type Step = SgdStep;

    fn at(&self, rates: Rates, step: u64) -> SgdStep {
        SgdStep {
            learning_rate: rates.learning_rate,
            penalty: rates.weight_decay,
            momentum: self.momentum,
            add: if step == 1 { 1. } else { 1. - self.dampening },
            nesterov: self.nesterov,
        }
    }

    #[inline(always)]
    fn update<C: Real>(
        step: &SgdStep,
        adjust: impl Fn(C) -> C,
        parameter: &mut [C],
        gradient: &[C],
        [buffer, _]: [&mut [C]; 2],
    ) {
        let [lr, penalty] = [step.learning_rate, step.penalty].map(C::from_f64);
        let [momentum, add] = [step.momentum, step.add].map(C::from_f64);
        let pairs = parameter.iter_mut().zip(gradient);
        if step.momentum == 0. {
            for (p, g) in pairs {
                *p = *p - lr * (adjust(*g) + penalty * *p);
            }
            return;
        }
        for ((p, g), b) in pairs.zip(buffer) {
            let g = adjust(*g) + penalty * *p;
            *b = momentum * *b + add * g;
            let direction = if step.nesterov { g + momentum * *b } else { *b };
            *p = *p - lr * direction;
        }
    }
}
