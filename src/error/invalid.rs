//! Errors that several callers make of input that cannot be used.

use candle_core::{DType, Shape};

use super::error::Error;

/// An [`Error`] about a subject, with a text as `format!` makes it.
macro_rules! invalid {
    ($subject:ident, $($text:tt)+) => {
        $crate::error::Error::from($crate::error::Invalid::new(
            $crate::error::Subject::$subject,
            format!($($text)+),
        ))
    };
}
pub(crate) use invalid;

/// A loss that is not a single number.
pub(crate) fn not_scalar(shape: &Shape) -> Error {
    invalid!(
        Loss,
        "the loss has shape {shape:?}: reduce it to one number with `mean_all()` or `sum_all()`"
    )
}

/// No parameter can be trained.
pub(crate) fn nothing_to_train() -> Error {
    invalid!(
        Parameter,
        "there is no floating-point Var to train: pass the `VarMap` or its `all_vars()` after the model was built"
    )
}

/// The same Var is in the list twice, the second time under this name, and would be updated twice.
pub(crate) fn listed_twice(parameter: &str) -> Error {
    invalid!(
        Parameter,
        "parameter `{parameter}` is listed twice: list each Var once"
    )
}

/// Gradients of this type cannot be accumulated.
pub(crate) fn untrainable(parameter: &str, dtype: DType) -> Error {
    invalid!(
        Parameter,
        "parameter `{parameter}` is {dtype:?}: gradients accumulate in f64, f32, f16 and bf16"
    )
}

/// No parameter has a name that matches this pattern.
pub(crate) fn no_match(pattern: &str) -> Error {
    invalid!(
        Parameter,
        "`allow_unreached`: no parameter has a name that matches `{pattern}`; `*` stands for any text, as in `pooler.*`, and a Var without a name has its place in the list"
    )
}
