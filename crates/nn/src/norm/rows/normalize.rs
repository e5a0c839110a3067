use candle_core::{D, Result, Tensor, bail};

use super::{Rows, RowsBackward, RowsForward};
use crate::graph::{Backward, Gradients, record};
use crate::kernel::{self, Kernel, same_type};
use crate::norm::zeros;

/// Normalizes the rows of `xs`, its last dimension. All arithmetic is in f32, f64 for f64, and the variance is summed around the mean.
///
/// # Errors
/// If a parameter has not as many elements as a row, or another type.
pub fn normalize(
    eps: f64,
    center: bool,
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let name = match center {
        true => "layer-norm",
        false => "rms-norm",
    };
    let width = xs.dim(D::Minus1)?;
    let rows = Rows { width, eps, center };
    for parameter in [Some(weight), bias].into_iter().flatten() {
        if parameter.dims() != [width] {
            bail!(
                "{name}: {:?} needs parameters of ({width}), got {:?}",
                xs.shape(),
                parameter.shape()
            )
        }
        same_type(name, xs.dtype(), parameter.dtype())?;
    }
    if !kernel::runs_on(xs.device()) {
        let (zeros, eps) = (weight.zeros_like()?, eps as f32);
        let bias = bias.unwrap_or(&zeros);
        return match center {
            true => candle_nn::ops::layer_norm_slow(xs, weight, bias, eps),
            false => candle_nn::ops::rms_norm_slow(xs, weight, eps)?.broadcast_add(bias),
        };
    }
    let ys = match xs.elem_count() {
        0 => xs.zeros_like()?,
        _ => {
            let shift = match bias {
                Some(bias) => bias.detach(),
                None => weight.zeros_like()?,
            };
            let [ys] = kernel::run(&RowsForward(rows), [xs, weight, &shift])?;
            ys
        }
    };
    match bias {
        None => record(name, [xs, weight], ys, move |given| backward(rows, given)),
        Some(bias) => record(name, [xs, weight, bias], ys, move |given| {
            backward(rows, given)
        }),
    }
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
