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

    pub fn check(self, optimizer: &'static str, name: &'static str, value: f64) -> Result<()> {
        match self.holds(value) {
            true => Ok(()),
            false => Err(OptimizerError::HyperParameter {
                optimizer,
                name,
                value: value.to_string(),
                allowed: self.words,
            }
            .into()),
        }
    }
}

/// A hyper-parameter: its name, its range and a reference to its value.
pub type HyperParameter<'a> = (&'static str, Range, Value<'a>);

/// A reference to a hyper-parameter's value.
#[derive(Debug)]
pub enum Value<'a> {
    Number(&'a mut f64),
    /// 0 or 1 as a number.
    Flag(&'a mut bool),
}

impl Value<'_> {
    pub fn get(&self) -> f64 {
        match self {
            Self::Number(number) => **number,
            Self::Flag(flag) => f64::from(**flag),
        }
    }

    pub fn set(self, value: f64) {
        match self {
            Self::Number(number) => *number = value,
            Self::Flag(flag) => *flag = value != 0.,
        }
    }
}

pub fn number<'a>(name: &'static str, range: Range, number: &'a mut f64) -> HyperParameter<'a> {
    (name, range, Value::Number(number))
}

pub fn flag<'a>(name: &'static str, flag: &'a mut bool) -> HyperParameter<'a> {
    (name, Range::FLAG, Value::Flag(flag))
}
