//! Layer normalization and RMS normalization, as [`mod@candle_nn::layer_norm`], with a backward pass.

use candle_core::{D, Module, Result, Tensor};
use candle_nn::VarBuilder;
pub use candle_nn::layer_norm::LayerNormConfig;

use super::norm::rows::{Forward, Rows, normalize};

/// Layer normalization over the last dimension, as [`candle_nn::LayerNorm`], with a backward pass.
///
/// With a bias and a contiguous input, `forward` is candle's fused operation, which computes the variance as mean(x²) − mean(x)² in
/// f32. It loses digits as the mean grows: for a deviation of about 1, a mean of 100 costs 2e-3 of the output, 1000 costs 0.2, and from
/// 1e4 on the output may be NaN. The gradient is that of the exact function. Where means may be large, use
/// [`ops::layer_norm_slow`](super::ops::layer_norm_slow), which sums the variance around the mean, as `forward` does for strided
/// inputs, for f64 and without a bias.
///
/// It keeps its output. A weight or bias of another shape than the last dimension is an error if the input is contiguous and there is a
/// bias. Else candle's composition broadcasts it, which keeps several times the output.
#[derive(Clone, Debug)]
pub struct LayerNorm(candle_nn::LayerNorm);

impl LayerNorm {
    /// Subtracts the mean, divides by √(variance + `eps`), multiplies by `weight` and adds `bias`.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::new(weight, bias, eps))
    }

    /// [`new`](Self::new) without a bias.
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::new_no_bias(weight, eps))
    }

    /// Divides by √(mean of squares + `eps`) and multiplies by `weight`.
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::rms_norm(weight, eps))
    }

    /// The weight.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The bias, if there is one.
    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }

    /// The number added to the variance.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// Whether the mean is subtracted.
    pub fn remove_mean(&self) -> bool {
        self.0.remove_mean()
    }

    fn normalize(&self, xs: &Tensor, how: Forward) -> Result<Tensor> {
        let (weight, bias) = (self.weight(), self.bias());
        let width = xs.dim(D::Minus1)?;
        if weight.dims() != [width] || bias.is_some_and(|bias| bias.dims() != [width]) {
            return self.0.forward(xs);
        }
        let (eps, center) = (self.eps(), self.remove_mean());
        let rows = Rows { width, eps, center };
        normalize(rows, how, xs, weight, bias)
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        // As in candle: only RmsNorm uses the fused operation that keeps the mean.
        let how = match self.remove_mean() {
            true => fused_if_contiguous(xs),
            false => Forward::Exact,
        };
        self.normalize(xs, how)
    }
}

/// candle's fused operations take contiguous inputs only; its layers use their exact compositions for others.
fn fused_if_contiguous(xs: &Tensor) -> Forward {
    match xs.is_contiguous() {
        true => Forward::Fused,
        false => Forward::Exact,
    }
}

/// Creates a [`LayerNorm`] from the tensors `weight` (or `gamma`) and, if `config.affine`, `bias` (or `beta`).
///
/// # Errors
/// If `vb` has no such tensors of `size` elements.
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    config: C,
    vb: VarBuilder,
) -> Result<LayerNorm> {
    Ok(LayerNorm(candle_nn::layer_norm(size, config, vb)?))
}

/// Creates a [`LayerNorm`] without bias from the tensor `weight` (or `gamma`).
///
/// # Errors
/// If `vb` has no such tensor of `size` elements.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    Ok(LayerNorm(candle_nn::layer_norm_no_bias(size, eps, vb)?))
}

/// RMS normalization over the last dimension, as [`candle_nn::RmsNorm`], with a backward pass.
///
/// It keeps its output.
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// Divides by √(mean of squares + `eps`) and multiplies by `weight`.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// The same as a [`LayerNorm`] that does not subtract the mean.
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The weight.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The number added to the mean of squares.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// As `forward`, with sums of f16 and bf16 in f32 also on the CPU. Both have a backward pass.
    ///
    /// # Errors
    /// If the weight does not match `xs` in shape or type.
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.normalize(xs, fused_if_contiguous(xs))
    }
}

/// Creates a [`RmsNorm`] from the tensor `weight` (or `gamma`).
///
/// # Errors
/// If `vb` has no such tensor of `size` elements.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    let norm = candle_nn::rms_norm(size, eps, vb)?;
    Ok(RmsNorm(LayerNorm(norm.into_inner())))
}
