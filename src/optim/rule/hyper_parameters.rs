use crate::error::{OptimizerError, Result};

/// A hyper-parameter by its name: to be checked, saved and sent to a GPU.
#[derive(Debug, Clone, Copy)]
pub struct HyperParameter {
    pub name: &'static str,
    pub value: f64,
    pub range: Range,
}

/// The values that a number may have; all are finite.
#[derive(Debug, Clone, Copy)]
pub enum Range {
    NotNegative,
    Positive,
    NotPositive,
    /// At least 0 and below 1.
    Fraction,
    /// Above 0 and at most 1.
    Part,
    /// At least 1.
    Multiple,
    /// Positive, and a normal number in f32.
    Scale,
    /// 0 or 1.
    Flag,
}

impl Range {
    pub fn holds(self, value: f64) -> bool {
        value.is_finite()
            && match self {
                Self::NotNegative => value >= 0.,
                Self::Positive => value > 0.,
                Self::NotPositive => value <= 0.,
                Self::Fraction => (0. ..1.).contains(&value),
                Self::Part => value > 0. && value <= 1.,
                Self::Multiple => value >= 1.,
                Self::Scale => value > 0. && (value as f32).is_normal(),
                Self::Flag => value == 0. || value == 1.,
            }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::NotNegative => "finite and at least 0",
            Self::Positive => "finite and above 0",
            Self::NotPositive => "finite and at most 0",
            Self::Fraction => "at least 0 and below 1",
            Self::Part => "above 0 and at most 1",
            Self::Multiple => "finite and at least 1",
            Self::Scale => "above 0 and in the range of f32",
            Self::Flag => "0 or 1",
        }
    }

    pub fn check(self, optimizer: &'static str, name: &'static str, value: f64) -> Result<()> {
        match self.holds(value) {
            true => Ok(()),
            false => Err(OptimizerError::HyperParameter {
                optimizer,
                name,
                value: value.to_string(),
                allowed: self.words(),
            }
            .into()),
        }
    }
}

/// A field that is saved as a number.
pub trait Number {
    fn number(&self) -> f64;
    fn set(&mut self, number: f64);
}

impl Number for f64 {
    fn number(&self) -> f64 {
        *self
    }

    fn set(&mut self, number: f64) {
        *self = number;
    }
}

impl Number for bool {
    fn number(&self) -> f64 {
        (*self).into()
    }

    fn set(&mut self, number: f64) {
        *self = number != 0.;
    }
}

/// `None` is saved as 0.
impl Number for Option<f64> {
    fn number(&self) -> f64 {
        self.unwrap_or(0.)
    }

    fn set(&mut self, number: f64) {
        *self = (number > 0.).then_some(number);
    }
}

/// Implements the methods of `Rule` that read and write the fields of its hyper-parameters. They go to the GPU in this order.
macro_rules! hyper_parameters {
    ($($name:ident: $range:ident),+ $(,)?) => {
        fn hyper_parameters(&self) -> impl Iterator<Item = $crate::optim::rule::HyperParameter> {
            use $crate::optim::rule::hyper_parameters::{HyperParameter, Number, Range};
            [$(HyperParameter {
                name: stringify!($name),
                value: Number::number(&self.$name),
                range: Range::$range,
            }),+]
            .into_iter()
        }

        fn set_hyper_parameter(&mut self, name: &str, value: f64) {
            use $crate::optim::rule::hyper_parameters::Number;
            match name {
                $(stringify!($name) => Number::set(&mut self.$name, value),)+
                _ => {}
            }
        }

        fn learning_rate(&self) -> f64 {
            self.lr
        }

        fn set_learning_rate(&mut self, learning_rate: f64) {
            self.lr = learning_rate;
        }

        fn weight_decay(&self) -> f64 {
            self.weight_decay
        }
    };
}
