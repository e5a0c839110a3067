use std::fmt::Debug;

use super::elementwise::Rates;
use super::hyper_parameters::HyperParameter;
use crate::optim::cpu::Target;

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
