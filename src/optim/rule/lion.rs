use super::elementwise::{Elementwise, Rates};
use super::update_rule::{Kept, Kernel, Rule, moment};
use crate::optim::cpu::{Real, Target};

/// Hyper-parameters of [`Lion`](crate::optim::Lion): Algorithm 2 of Chen et al. 2023 (arXiv 2302.06675), with its defaults.
///
/// ```
/// use candle_headroom::optim::ParamsLion;
///
/// assert_eq!(ParamsLion::default().beta2, 0.99);
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

#[derive(Debug, Clone, Copy)]
pub struct LionStep {
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    keep: f64,
}

impl Rule for ParamsLion {
    const NAME: &'static str = "Lion";
    const KERNEL: Kernel = Kernel::Lion;

    hyper_parameters! {
        lr: NotNegative,
        weight_decay: NotNegative,
        beta1: Fraction,
        beta2: Fraction,
    }

    fn state(&self, dims: &[usize]) -> Vec<Kept> {
        vec![moment("exp_avg", dims)]
    }

    fn apply(&self, rates: Rates, step: u64, target: Target<'_>) {
        target.elementwise::<Self>(&self.at(rates, step), step);
    }
}

impl Elementwise for ParamsLion {
    type Step = LionStep;

    fn at(&self, rates: Rates, _: u64) -> LionStep {
        LionStep {
            learning_rate: rates.learning_rate,
            beta1: self.beta1,
            beta2: self.beta2,
            keep: 1. - rates.learning_rate * rates.weight_decay,
        }
    }

    #[inline(always)]
    fn update<C: Real>(
        step: &LionStep,
        adjust: impl Fn(C) -> C,
        parameter: &mut [C],
        gradient: &[C],
        [momentum, _]: [&mut [C]; 2],
    ) {
        let [lr, keep] = [step.learning_rate, step.keep].map(C::from_f64);
        let [beta1, beta2] = [step.beta1, step.beta2].map(C::from_f64);
        let [add1, add2] = [1. - step.beta1, 1. - step.beta2].map(C::from_f64);
        for ((p, g), m) in parameter.iter_mut().zip(gradient).zip(momentum) {
            let g = adjust(*g);
            let direction = (beta1 * *m + add1 * g).sign();
            *p = keep * *p - lr * direction;
            *m = beta2 * *m + add2 * g;
        }
    }
}
