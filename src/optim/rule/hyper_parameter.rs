use crate::error::{OptimizerError, Result};

/// The values that a number may have.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    pub words: &'static str,
    holds: fn(f64) -> bool,
}

impl Range {
    pub const NOT_NEGATIVE: Self = Self::new("finite and at least 0", |value| value >= 0.);
    pub const POSITIVE: Self = Self::new("finite and above 0", |value| value > 0.);
    pub const NOT_POSITIVE: Self = Self::new("finite and at most 0", |value| value <= 0.);
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
    pub fn check(
        self,
        optimizer: &'static str,
        name: &'static str,
        value: impl Into<Option<f64>>,
    ) -> Result<()> {
        match value.into() {
            Some(value) if !self.holds(value) => Err(OptimizerError::HyperParameter {
                optimizer,
                name,
                value: value.to_string(),
                allowed: self.words,
            }
            .into()),
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

/// Lists the fields that are hyper-parameters, with their ranges: the method of [`Rule`](super::Rule), in the order of the kernels.
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
