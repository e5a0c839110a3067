use candle_core::{Module, Result, Tensor};
use candle_nn::{ConvTranspose2dConfig, VarBuilder};

use super::bias::widened;

/// The transpose of a convolution over the last two dimensions, as [`candle_nn::ConvTranspose2d`]; f16 and bf16 are computed in f32 and
/// rounded at the end, so that gradients are summed in f32. It keeps its inputs, in f32.
#[derive(Clone, Debug)]
pub struct ConvTranspose2d {
    inner: candle_nn::ConvTranspose2d,
}

impl ConvTranspose2d {
    /// A layer with a weight (in, out, kernel height, kernel width) and a bias (out).
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: ConvTranspose2dConfig) -> Self {
        Self {
            inner: candle_nn::ConvTranspose2d::new(weight, bias, config),
        }
    }

    /// Padding, stride and dilation.
    pub fn config(&self) -> &ConvTranspose2dConfig {
        self.inner.config()
    }

    /// The weight (in, out, kernel height, kernel width).
    pub fn weight(&self) -> &Tensor {
        self.inner.weight()
    }

    /// The bias (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.inner.bias()
    }
}

impl Module for ConvTranspose2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let wide = widened(x.dtype());
        if wide == x.dtype() || self.weight().dtype() != x.dtype() {
            return self.inner.forward(x);
        }
        let bias = self.bias().map(|bias| bias.to_dtype(wide)).transpose()?;
        let weight = self.weight().to_dtype(wide)?;
        let inner = candle_nn::ConvTranspose2d::new(weight, bias, *self.config());
        inner.forward(&x.to_dtype(wide)?)?.to_dtype(x.dtype())
    }
}

/// Makes a [`ConvTranspose2d`] with a bias, named and initialized as by [`candle_nn::conv_transpose2d`].
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn conv_transpose2d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: ConvTranspose2dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose2d> {
    let inner = candle_nn::conv_transpose2d(in_channels, out_channels, kernel_size, cfg, vb)?;
    Ok(ConvTranspose2d { inner })
}

/// Makes a [`ConvTranspose2d`] without a bias.
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn conv_transpose2d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: ConvTranspose2dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose2d> {
    let inner =
        candle_nn::conv_transpose2d_no_bias(in_channels, out_channels, kernel_size, cfg, vb)?;
    Ok(ConvTranspose2d { inner })
}
