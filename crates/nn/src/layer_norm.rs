//! Layer normalization and RMS normalization, as [`mod@candle_nn::layer_norm`], with a backward pass.

use candle_core::{D, Module, Result, Tensor};
use candle_nn::VarBuilder;
pub use candle_nn::layer_norm::LayerNormConfig;

use super::norm::rows::normalize;

/// Layer normalization over the last dimension, as [`candle_nn::LayerNorm`], with a backward pass.
///
/// All arithmetic is in f32, f64 for f64, and the variance is summed around the mean: see
/// [`ops::layer_norm`](super::ops::layer_norm()).
///
/// It keeps its output. A weight or bias of another shape than the last dimension is broadcast, which keeps several times the output.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Module, VarBuilder, VarMap, layer_norm};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let norm = layer_norm(64, 1e-5, vb)?; // weights `weight` and `bias`
/// let x = Tensor::randn(5f32, 2., (2, 10, 64), &Device::Cpu)?; // [batch, tokens, width]
/// let y = norm.forward(&x)?;
/// assert!(y.mean_all()?.to_scalar::<f32>()?.abs() < 1e-4);
/// # Ok(())
/// # }
/// ```
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
}

impl From<candle_nn::LayerNorm> for LayerNorm {
    fn from(layer: candle_nn::LayerNorm) -> Self {
        Self(layer)
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (self.weight(), self.bias());
        let width = xs.dim(D::Minus1)?;
        let is_row = |parameter: &Tensor| parameter.dims() == [width];
        if is_row(weight) && bias.is_none_or(is_row) {
            return normalize(self.eps(), self.remove_mean(), xs, weight, bias);
        }
        let ones = Tensor::ones(width, xs.dtype(), xs.device())?;
        let normal = normalize(self.eps(), self.remove_mean(), xs, &ones, None)?;
        let scaled = normal.broadcast_mul(weight)?;
        bias.iter()
            .try_fold(scaled, |scaled, bias| scaled.broadcast_add(bias))
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
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Module, RmsNorm};
///
/// # fn main() -> candle_core::Result<()> {
/// let weight = Tensor::ones(64, DType::F32, &Device::Cpu)?;
/// let norm = RmsNorm::new(weight, 1e-6);
/// let x = Tensor::randn(0f32, 3., (2, 10, 64), &Device::Cpu)?; // [batch, tokens, width]
/// assert_eq!(norm.forward(&x)?.dims(), [2, 10, 64]);
/// # Ok(())
/// # }
/// ```
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

    /// The same as `forward`, which has a backward pass too.
    ///
    /// # Errors
    /// If the weight does not match `xs` in shape or type.
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

impl From<candle_nn::RmsNorm> for RmsNorm {
    fn from(layer: candle_nn::RmsNorm) -> Self {
        Self(layer.into_inner().into())
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// Creates a [`RmsNorm`] from the tensor `weight` (or `gamma`).
///
/// # Errors
/// If `vb` has no such tensor of `size` elements.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    Ok(candle_nn::rms_norm(size, eps, vb)?.into())
}
