use std::io;

use candle_core::{Error, Shape};

use crate::modules::by_module;

/// Number of modules in the text.
const LISTED: usize = 3;

/// An audit cannot be made, or found something wrong.
///
/// In a function that returns candle's errors, `?` puts it inside an [`io::Error`] of theirs, from which it can be downcast.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The loss is not a single number, but has this shape.
    #[error("the loss has shape {0:?}: reduce it to one number with `mean_all()` or `sum_all()`")]
    NotScalar(Shape),
    /// Two forward passes with the same values gave these two losses.
    #[error(
        "the loss is {0} and then {1} with the same parameters: draw random numbers by `nn::Dropout` and in `nn::seeded`, and keep what a forward pass changes in the `VarMap`"
    )]
    NotRepeatable(f64, f64),
    /// Vars received no gradient.
    #[error(
        "no gradient for {} of {} parameters: {}; an operation without a backward pass (`softmax_last_dim`, `RmsNorm`, …) or a `detach` cuts them off, or the model does not use them",
        .names.len(), .names.len() + .others.len(), listed(.names, .others)
    )]
    #[non_exhaustive]
    Unreached {
        /// The names of the Vars without a gradient.
        names: Vec<String>,
        /// The names of the others, without BatchNorm's running statistics.
        others: Vec<String>,
    },
    /// The gradients of these Vars are not the slopes of the loss.
    #[error(
        "the gradient of `{}` is not the slope of the loss: print the audit with `{{:#}}`; an operation between it and the loss has a wrong backward pass, as `conv1d` and `max_pool2d` of candle's tensors: `tensor.with_gradients()` of `candle_headroom::nn` has right ones",
        .0.join("`, `")
    )]
    Wrong(Vec<String>),
    /// No Var has a name that matches this pattern.
    #[error("no Var has a name that matches `{0}`; `*` stands for any text, as in `pooler.*`")]
    NoMatch(String),
    /// An error of the closure or of the backward pass.
    #[error("{0}")]
    Candle(Error),
}

fn listed(names: &[String], others: &[String]) -> String {
    let (names, others) = (names.iter(), others.iter());
    let modules = by_module(names.map(String::as_str), others.map(String::as_str));
    let modules: Vec<String> = modules.iter().map(ToString::to_string).collect();
    let listed = modules.iter().take(LISTED).map(String::as_str);
    let listed = listed.collect::<Vec<_>>().join("; ");
    match modules.len().saturating_sub(LISTED) {
        0 => listed,
        more => format!("{listed}; and {more} more"),
    }
}

impl From<Error> for AuditError {
    fn from(error: Error) -> Self {
        Self::Candle(error)
    }
}

impl From<AuditError> for Error {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Candle(error) => error,
            own => Self::Io(io::Error::other(own)),
        }
    }
}
