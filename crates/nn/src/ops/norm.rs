use candle_core::{Result, Tensor};

use crate::norm::rows::normalize;

/// `alpha` · x / √(mean(x²) + `eps`) over the last dimension, as [`candle_nn::ops::rms_norm`], with a backward pass. `xs` may have any
/// strides; `alpha` has as many elements as the last dimension.
///
/// All arithmetic is in f32, f64 for f64. `rms_norm_slow` is the same function.
///
/// It keeps its output.
///
/// # Errors
/// If the shapes do not match, or `alpha` has another type than `xs`, or they are not f64, f32, f16 or bf16.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    normalize(eps.into(), false, xs, alpha, None)
}

/// (x − mean(x)) / √(variance(x) + `eps`) · `alpha` + `beta` over the last dimension, as [`candle_nn::ops::layer_norm`], with a
/// backward pass. `xs` may have any strides; `alpha` and `beta` have as many elements as the last dimension.
///
/// All arithmetic is in f32, f64 for f64, and the variance is summed around the mean. candle's operation computes mean(x²) − mean(x)²,
/// which loses digits as the mean grows and gives NaN from a mean of about 10⁴ deviations on. `layer_norm_slow` is the same function as
/// this one.
///
/// It keeps its output.
///
/// # Errors
/// If the shapes do not match, or a parameter has another type than `xs`, or they are not f64, f32, f16 or bf16.
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    normalize(eps.into(), true, xs, alpha, Some(beta))
}
