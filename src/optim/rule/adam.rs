//! Adam (Kingma and Ba 2014, arXiv 1412.6980) and AdamW (Loshchilov and Hutter 2017, arXiv 1711.05101), which differ in where the weight decay goes.
//!
//! Bias corrections are computed in f64, by squaring, as the kernels do: CPU and CUDA give the same bits.

use candle_nn::ParamsAdamW;

use super::{Algorithm, HyperParameter, Range, Rates, Rule, hyper_parameters};
use crate::optim::coded::Code;
use crate::optim::cpu::{Elementwise, Real};

/// Hyper-parameters of [`Adam`](crate::optim::Adam), with PyTorch's defaults.
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
        Step::new(self.numbers(), [1., rates.weight_decay], rates, step)
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
        Step::new(self.numbers(), [keep, 0.], rates, step)
    }
}

struct Step {
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

impl Step {
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

impl Elementwise for Step {
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
