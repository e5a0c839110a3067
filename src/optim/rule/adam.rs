use candle_nn::ParamsAdamW;

use super::elementwise::{Elementwise, Rates, power};
use super::update_rule::{Kept, Kernel, Rule, moment};
use crate::optim::cpu::{Real, Target};

/// Hyper-parameters of [`Adam`](crate::optim::Adam), with PyTorch's defaults.
///
/// ```
/// use candle_headroom::optim::ParamsAdam;
///
/// assert_eq!(ParamsAdam::default().weight_decay, 0.);
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

/// One step of Adam or AdamW.
#[derive(Debug, Clone, Copy)]
pub struct AdamStep {
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

fn step(params: &ParamsAdam, rates: Rates, step: u64, is_decoupled: bool) -> AdamStep {
    let Rates {
        learning_rate,
        weight_decay,
    } = rates;
    let (keep, penalty) = match is_decoupled {
        true => (1. - learning_rate * weight_decay, 0.),
        false => (1., weight_decay),
    };
    AdamStep {
        beta1: params.beta1,
        beta2: params.beta2,
        eps: params.eps,
        size: learning_rate / (1. - power(params.beta1, step)),
        unbias: 1. / (1. - power(params.beta2, step)).sqrt(),
        keep,
        penalty,
    }
}

#[inline(always)]
fn update<C: Real>(
    step: &AdamStep,
    adjust: impl Fn(C) -> C,
    parameter: &mut [C],
    gradient: &[C],
    [first, second]: [&mut [C]; 2],
) {
    let [beta1, beta2, eps, size] = [step.beta1, step.beta2, step.eps, step.size].map(C::from_f64);
    let [unbias, keep, penalty] = [step.unbias, step.keep, step.penalty].map(C::from_f64);
    // In f64, because 1 - 0.999 in f32 is off by 5 in 100,000.
    let [add1, add2] = [1. - step.beta1, 1. - step.beta2].map(C::from_f64);
    let moments = first.iter_mut().zip(second);
    for ((p, g), (m, v)) in parameter.iter_mut().zip(gradient).zip(moments) {
        let g = adjust(*g) + penalty * *p;
        *m = beta1 * *m + add1 * g;
        *v = beta2 * *v + add2 * g * g;
        *p = keep * *p - size * *m / (v.sqrt() * unbias + eps);
    }
}

macro_rules! adam {
    ($params:ty, $name:literal, $kernel:ident, $is_decoupled:literal, $common:expr) => {
        impl Rule for $params {
            const NAME: &'static str = $name;
            const KERNEL: Kernel = Kernel::$kernel;

            hyper_parameters! {
                lr: NotNegative,
                weight_decay: NotNegative,
                beta1: Fraction,
                beta2: Fraction,
                eps: NotNegative,
            }

            fn state(&self, dims: &[usize]) -> Vec<Kept> {
                vec![moment("exp_avg", dims), moment("exp_avg_sq", dims)]
            }

            fn apply(&self, rates: Rates, step: u64, target: Target<'_>) {
                target.elementwise::<Self>(&self.at(rates, step), step);
            }
        }

        impl Elementwise for $params {
            type Step = AdamStep;

            fn at(&self, rates: Rates, number: u64) -> AdamStep {
                step(&$common(self), rates, number, $is_decoupled)
            }

            #[inline(always)]
            fn update<C: Real>(
                step: &AdamStep,
                adjust: impl Fn(C) -> C,
                parameter: &mut [C],
                gradient: &[C],
                state: [&mut [C]; 2],
            ) {
                update(step, adjust, parameter, gradient, state);
            }
        }
    };
}

adam!(ParamsAdam, "Adam", Adam, false, |params: &ParamsAdam| {
    *params
});
adam!(ParamsAdamW, "AdamW", AdamW, true, |params: &ParamsAdamW| {
    ParamsAdam {
        lr: params.lr,
        beta1: params.beta1,
        beta2: params.beta2,
        eps: params.eps,
        weight_decay: params.weight_decay,
    }
});
