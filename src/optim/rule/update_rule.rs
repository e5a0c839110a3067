use std::fmt::Debug;

use super::hyper_parameter::HyperParameter;
use crate::error::Result;
use crate::optim::cpu::{Real, Target};

/// An update rule, and its hyper-parameters.
pub trait Rule: Clone + Debug + Default + Send + Sync + 'static {
    /// The optimizer's name; in lower case also that of its kernel `decide_…`.
    const NAME: &'static str;
    /// The name of the file with its kernels.
    const KERNELS: &'static str;
    /// Whether it treats each element by itself, so that its state has one number for each.
    const IS_ELEMENTWISE: bool = true;
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

    /// Returns the tensors that it keeps for a parameter of these dimensions.
    fn state(&self, dims: &[usize]) -> Vec<Kept>;

    /// Returns how many matrices of a parameter of these dimensions have a factored second moment.
    fn matrices(_: &[usize]) -> usize {
        0
    }

    /// Updates a parameter for the `step`-th time, counted from 1.
    fn apply<C: Real>(&self, rates: Rates, step: u64, target: Target<'_, C>);
}

/// Numbers that differ between groups of parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub learning_rate: f64,
    pub weight_decay: f64,
}

/// A tensor of state.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// Its name in PyTorch.
    pub name: &'static str,
    pub dims: Vec<usize>,
    /// For a moment, which may be kept in fewer bits: the signs that its elements can have.
    pub moment: Option<Sign>,
}

/// The signs of a moment's elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sign {
    Either,
    Positive,
}

impl Kept {
    /// State that keeps the type that the rule computes in.
    pub fn new(name: &'static str, dims: &[usize]) -> Self {
        let dims = dims.to_vec();
        let moment = None;
        Self { name, dims, moment }
    }

    pub fn moment(name: &'static str, dims: &[usize], sign: Sign) -> Self {
        let moment = Some(sign);
        Self {
            moment,
            ..Self::new(name, dims)
        }
    }

    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}
