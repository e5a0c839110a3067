//! The update rules.

mod adam;
mod lion;
mod sgd;

pub use adam::ParamsAdam;
pub use lion::ParamsLion;
pub use sgd::ParamsSgd;

use std::fmt::Debug;

use crate::error::{Result, invalid};
use crate::optim::coded::Code;
use crate::optim::cpu::Elementwise;

/// An optimizer's hyper-parameters, whose type names its update rule. Only this crate implements it.
pub trait Algorithm: Rule {}

/// An update rule, and its hyper-parameters.
pub trait Rule: Clone + Debug + Default + Send + Sync + 'static {
    /// The optimizer's name; in lower case also that of its kernel `decide_…`.
    const NAME: &'static str;
    /// The name of the file with its kernels.
    const KERNELS: &'static str;
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

    /// The moments that it keeps of each parameter, by their names in PyTorch, and their code where they
    /// have 8 bits. Each has the parameter's shape; there are at most two.
    fn moments(&self) -> &'static [(&'static str, Code)];

    /// The `step`-th update of a parameter, counted from 1.
    fn step(&self, rates: Rates, step: u64) -> impl Elementwise;
}

/// Numbers that differ between groups of parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub learning_rate: f64,
    pub weight_decay: f64,
}

/// The values that a number may have.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    pub words: &'static str,
    holds: fn(f64) -> bool,
}

impl Range {
    pub const NOT_NEGATIVE: Self = Self::new("finite and at least 0", |value| value >= 0.);
    pub const POSITIVE: Self = Self::new("finite and above 0", |value| value > 0.);
    pub const FRACTION: Self = Self::new("at least 0 and below 1", |v| (0. ..1.).contains(&v));
    pub const PART: Self = Self::new("above 0 and at most 1", |v| v > 0. && v <= 1.);
    pub const MULTIPLE: Self = Self::new("finite and at least 1", |value| value >= 1.);
    /// A loss is multiplied in f32.
    pub const SCALE: Self = Self::new("above 0 and in the range of f32", |value| {
        value > 0. && (value as f32).is_normal()
    });
    pub const FLAG: Self = Self::new("0 or 1", |value| value == 0. || value == 1.);

    const fn new(words: &'static str, holds: fn(f64) -> bool) -> Self {
        Self { words, holds }
    }

    pub fn holds(self, value: f64) -> bool {
        value.is_finite() && (self.holds)(value)
    }

    /// Checks a value, if there is one.
    pub fn check(self, optimizer: &str, name: &str, value: impl Into<Option<f64>>) -> Result<()> {
        match value.into() {
            Some(value) if !self.holds(value) => Err(invalid!(
                Optimizer,
                "`{name}` of {optimizer} must be {}, got {value}",
                self.words
            )),
            _ => Ok(()),
        }
    }
}

/// A hyper-parameter: its name, its range and its value.
pub type HyperParameter<'a> = (&'static str, Range, &'a mut dyn Value);

/// The value of a hyper-parameter as a number; a flag is 0 or 1.
pub trait Value {
    fn get(&self) -> f64;
    fn set(&mut self, value: f64);
}

impl Value for f64 {
    fn get(&self) -> f64 {
        *self
    }

    fn set(&mut self, value: f64) {
        *self = value;
    }
}

impl Value for bool {
    fn get(&self) -> f64 {
        f64::from(*self)
    }

    fn set(&mut self, value: f64) {
        *self = value != 0.;
    }
}

/// Lists the fields that are hyper-parameters, with their ranges: the method of [`Rule`], in the order of the kernels.
macro_rules! hyper_parameters {
    ($($field:ident: $range:ident),+) => {
        fn hyper_parameters(&mut self) -> impl Iterator<Item = HyperParameter<'_>> {
            let all: [HyperParameter<'_>; _] = [
                $((stringify!($field), Range::$range, &mut self.$field)),+
            ];
            all.into_iter()
        }
    };
}
pub(super) use hyper_parameters;
