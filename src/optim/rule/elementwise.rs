use crate::optim::cpu::Real;

/// A rule that treats each element by itself.
pub trait Elementwise {
    /// What is the same for all elements in one step.
    type Step: Copy + Sync;

    /// The numbers of a parameter's `step`-th step, counted from 1.
    fn at(&self, rates: Rates, step: u64) -> Self::Step;

    /// Updates elements. All slices have the same length, but a state that the rule does not keep is empty.
    fn update<C: Real>(
        step: &Self::Step,
        adjust: impl Fn(C) -> C,
        parameter: &mut [C],
        gradient: &[C],
        state: [&mut [C]; 2],
    );
}

/// What differs between groups of parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub learning_rate: f64,
    pub weight_decay: f64,
}

/// `base` to a whole power, by squaring. The kernels do the same, so that both give the same bits.
pub fn power(base: f64, mut exponent: u64) -> f64 {
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
