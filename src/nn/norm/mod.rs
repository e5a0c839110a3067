//! Normalization of rows, and of cells such as the channels of a picture.

pub mod cells;
pub mod groups;
pub mod rows;

use candle_core::{DType, Error, Result, Tensor};

use super::graph::{Backward, Gradients};

/// The gradients of an operation without output.
pub fn zeros<const N: usize>(given: &Backward<N>) -> Result<Gradients<N>> {
    let mut gradients = [const { None }; N];
    for ((gradient, input), needs) in gradients.iter_mut().zip(&given.inputs).zip(given.needs) {
        if needs {
            *gradient = Some(input.zeros_like()?);
        }
    }
    Ok(gradients)
}

/// Fails if a parameter has another type than the input.
pub fn check_type(op: &'static str, xs: &Tensor, parameter: &Tensor) -> Result<()> {
    if xs.dtype() == parameter.dtype() {
        return Ok(());
    }
    let (lhs, rhs) = (xs.dtype(), parameter.dtype());
    Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt())
}

/// The type of statistics: f64 for f64, f32 for all others.
pub fn statistics_type(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}
