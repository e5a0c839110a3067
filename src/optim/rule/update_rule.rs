use std::fmt::Debug;

use super::hyper_parameters::HyperParameter;
use crate::optim::cpu::{Real, Target};

/// An update rule, and its hyper-parameters.
pub trait Rule: Clone + Debug + Default + Send + Sync + 'static {
    /// The optimizer's name.
    const NAME: &'static str;
    /// Its kernels on the GPU, which get the hyper-parameters in the order of [`hyper_parameters`](Self::hyper_parameters).
    const KERNEL: Kernel;

    /// An iterator, because a step on the GPU reads them and allocates nothing.
    fn hyper_parameters(&self) -> impl Iterator<Item = HyperParameter>;
    fn set_hyper_parameter(&mut self, name: &str, value: f64);
    fn learning_rate(&self) -> f64;
    fn set_learning_rate(&mut self, learning_rate: f64);
    fn weight_decay(&self) -> f64;

    /// The tensors that it keeps for a parameter of these dimensions.
    fn state(&self, dims: &[usize]) -> Vec<Kept>;

    /// The number of f64 that it needs for a parameter while it computes.
    fn scratch(&self, _: &[usize]) -> usize {
        0
    }

    /// Updates a parameter for the `step`-th time, counted from 1.
    fn apply(&self, rates: Rates, step: u64, target: Target<'_>);
}

/// The kernels of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    Adafactor,
    Adam,
    AdamW,
    Lion,
    Sgd,
}

/// A tensor of state.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// PyTorch's name of it.
    pub name: &'static str,
    pub dims: Vec<usize>,
    /// Whether it may be kept in bf16.
    pub is_moment: bool,
}

/// State of the parameter's own shape.
pub fn moment(name: &'static str, dims: &[usize]) -> Kept {
    Kept {
        name,
        dims: dims.to_vec(),
        is_moment: true,
    }
}

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
