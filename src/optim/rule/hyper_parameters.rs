//! A rule's numbers by their names: to be checked, saved and sent to a GPU.

#[derive(Debug, Clone, Copy)]
pub struct HyperParameter {
    pub name: &'static str,
    pub value: f64,
    pub range: Range,
}

/// What a hyper-parameter may be.
#[derive(Debug, Clone, Copy)]
pub enum Range {
    NotNegative,
    Positive,
    /// From 0 to below 1.
    Fraction,
    NotPositive,
    /// Above 0 and at most 1.
    Part,
    /// From 1 on.
    Multiple,
    /// Above 0, and such that f32 can hold it.
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
                Self::Fraction => (0. ..1.).contains(&value),
                Self::NotPositive => value <= 0.,
                Self::Part => value > 0. && value <= 1.,
                Self::Multiple => value >= 1.,
                Self::Scale => value > 0. && (value as f32).is_normal(),
                Self::Flag => value == 0. || value == 1.,
            }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::NotNegative => "a finite number from 0 on",
            Self::Positive => "a finite number above 0",
            Self::Fraction => "at least 0 and below 1",
            Self::NotPositive => "a finite number, 0 or below",
            Self::Part => "above 0 and at most 1",
            Self::Multiple => "a finite number from 1 on",
            Self::Scale => "a number above 0 that f32 can hold",
            Self::Flag => "0 or 1",
        }
    }
}

/// A field that is written as a number.
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

/// `None` is written as 0.
impl Number for Option<f64> {
    fn number(&self) -> f64 {
        self.unwrap_or(0.)
    }

    fn set(&mut self, number: f64) {
        *self = (number > 0.).then_some(number);
    }
}

/// The part of a `Rule` that reads and writes the fields of its hyper-parameters. They go to the GPU in this order.
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
