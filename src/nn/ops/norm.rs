use candle_core::{D, Result, Tensor, bail};

use crate::nn::norm::rows::{Forward, Rows, normalize};

/// `alpha` · x / √(mean(x²) + `eps`) over the last dimension, as [`candle_nn::ops::rms_norm`], with a backward pass. `xs` may have any
/// strides; `alpha` has as many elements as the last dimension.
///
/// The forward pass is candle's fused operation, except for f64, which candle refuses on the CPU and sums in f32 on CUDA.
///
/// It keeps its output.
///
/// # Errors
/// If the shapes do not match, or `alpha` has another type than `xs`, or they are not f64, f32, f16 or bf16.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    let width = xs.dim(D::Minus1)?;
    if width != alpha.dims1()? {
        bail!(
            "shape mismatch in rms-norm {:?} {:?}",
            xs.shape(),
            alpha.shape()
        )
    }
    normalize(rows(width, eps, false), Forward::Fused, xs, alpha, None)
}

/// (x − mean(x)) / √(variance(x) + `eps`) · `alpha` + `beta` over the last dimension, as [`candle_nn::ops::layer_norm`], with a
/// backward pass. `xs` may have any strides; `alpha` and `beta` have as many elements as the last dimension.
///
/// The forward pass is candle's fused operation, except for f64, which candle refuses on the CPU and sums in f32 on CUDA. That operation
/// computes the variance as mean(x²) − mean(x)² in f32 and loses digits as the mean grows: for a deviation of about 1, a mean of 100
/// costs 2e-3 of the output, 1000 costs 0.2, and from 1e4 on the output may be NaN. The gradient is that of the exact function. Where
/// means may be large, use [`layer_norm_slow`].
///
/// It keeps its output.
///
/// # Errors
/// If the shapes do not match, or a parameter has another type than `xs`, or they are not f64, f32, f16 or bf16.
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    let width = xs.dim(D::Minus1)?;
    if width != alpha.dims1()? || width != beta.dims1()? {
        bail!(
            "shape mismatch in layer-norm src: {:?} alpha: {:?} beta: {:?}",
            xs.shape(),
            alpha.shape(),
            beta.shape()
        )
    }
    normalize(
        rows(width, eps, true),
        Forward::Fused,
        xs,
        alpha,
        Some(beta),
    )
}

/// As [`rms_norm`], with sums of f16 and bf16 in f32 also on the CPU. An `alpha` of another shape than the last dimension is broadcast
/// by candle's composition, which keeps several times the output.
///
/// # Errors
/// As [`rms_norm`].
pub fn rms_norm_slow(x: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    if alpha.dims() != [width] {
        return candle_nn::ops::rms_norm_slow(x, alpha, eps);
    }
    normalize(rows(width, eps, false), Forward::Exact, x, alpha, None)
}

/// As [`layer_norm`], with the variance summed around the mean. An `alpha` or `beta` of another shape than the last dimension is
/// broadcast by candle's composition, which keeps several times the output.
///
/// # Errors
/// As [`layer_norm`].
pub fn layer_norm_slow(x: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    if alpha.dims() != [width] || beta.dims() != [width] {
        return candle_nn::ops::layer_norm_slow(x, alpha, beta, eps);
    }
    normalize(rows(width, eps, true), Forward::Exact, x, alpha, Some(beta))
}

fn rows(width: usize, eps: f32, center: bool) -> Rows {
    let eps = eps.into();
    Rows { width, eps, center }
}
