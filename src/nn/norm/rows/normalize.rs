use candle_core::{DType, Result, Tensor};

use super::{Rows, RowsBackward, RowsForward};
use crate::nn::graph::{Backward, Gradients, record};
use crate::nn::kernel::{self, Kernel};
use crate::nn::norm::{check_type, zeros};

/// How to compute the forward pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Forward {
    /// By candle's fused operation, where it has one that sums in the right type.
    Fused,
    /// By our kernel: all arithmetic in f32, f64 for f64, and the variance around the mean.
    Exact,
}

/// Normalizes the rows of `xs`. The parameters have as many elements as a row.
pub fn normalize(
    rows: Rows,
    how: Forward,
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let name = match rows.center {
        true => "layer-norm",
        false => "rms-norm",
    };
    for parameter in [Some(weight), bias].into_iter().flatten() {
        check_type(name, xs, parameter)?;
    }
    let ys = match xs.elem_count() {
        0 => xs.zeros_like()?,
        _ => forward(rows, how, xs, weight, bias)?,
    };
    match bias {
        None => record(name, [xs, weight], ys, move |given| backward(rows, given)),
        Some(bias) => record(name, [xs, weight, bias], ys, move |given| {
            backward(rows, given)
        }),
    }
}

fn forward(
    rows: Rows,
    how: Forward,
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let dense = |tensor: &Tensor| tensor.detach().contiguous();
    let eps = rows.eps as f32;
    // candle sums f64 in f32 on CUDA, and refuses it on the CPU.
    let is_fused = how == Forward::Fused && xs.dtype() != DType::F64;
    let bias = match bias {
        None if is_fused && !rows.center => {
            return candle_nn::ops::rms_norm(&dense(xs)?, &dense(weight)?, eps);
        }
        Some(bias) if is_fused && rows.center => {
            return candle_nn::ops::layer_norm(&dense(xs)?, &dense(weight)?, &dense(bias)?, eps);
        }
        None => &weight.zeros_like()?,
        Some(bias) => bias,
    };
    let [ys] = kernel::run(&RowsForward(rows), [xs, weight, bias])?;
    Ok(ys)
}

/// The gradients of the input and of its one or two parameters.
fn backward<const N: usize>(rows: Rows, given: Backward<N>) -> Result<Gradients<N>> {
    if given.output.elem_count() == 0 {
        return zeros(&given);
    }
    let [xs, weight, ..] = given.inputs.as_slice() else {
        return Err(kernel::mismatch(RowsBackward::NAME));
    };
    let with_sums = given.needs.iter().skip(1).any(|needed| *needed);
    let gradients = RowsBackward { rows, with_sums };
    let gradients = kernel::run(&gradients, [xs, weight, &given.gradient])?;
    let mut gradients = gradients.into_iter();
    Ok(given
        .needs
        .map(|needed| gradients.next().filter(|_| needed)))
}
