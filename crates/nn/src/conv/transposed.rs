use candle_core::{Module, Result, Tensor};
use candle_nn::{ConvTranspose1dConfig, VarBuilder};

use super::bias::record_with_bias;
use super::sliding::Sliding;

/// The transpose of a convolution over the last dimension, as [`candle_nn::ConvTranspose1d`], with a backward pass. It keeps its output.
#[derive(Clone, Debug)]
pub struct ConvTranspose1d {
    inner: candle_nn::ConvTranspose1d,
}

impl ConvTranspose1d {
    /// A layer with a weight (in, out / groups, kernel) and a bias (out).
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: ConvTranspose1dConfig) -> Self {
        Self {
            inner: candle_nn::ConvTranspose1d::new(weight, bias, config),
        }
    }

    /// Padding, stride, dilation and groups.
    pub fn config(&self) -> &ConvTranspose1dConfig {
        self.inner.config()
    }

    /// The weight (in, out / groups, kernel).
    pub fn weight(&self) -> &Tensor {
        self.inner.weight()
    }

    /// The bias (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.inner.bias()
    }
}

impl Module for ConvTranspose1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let ConvTranspose1dConfig {
            padding,
            output_padding,
            stride,
            dilation,
            groups,
        } = *self.config();
        let shape = Sliding {
            padding,
            stride,
            dilation,
            groups,
        };
        let length = shape.widest(x.dim(2)?, self.weight().dim(2)?)? + output_padding;
        let y = shape.widen(&x.detach(), &self.weight().detach(), length)?;
        let gradients =
            move |x: &Tensor, weight: &Tensor, dy: &Tensor, [needs_x, needs_weight]: [bool; 2]| {
                let dx = needs_x.then(|| shape.narrow(dy, weight, None)?.narrow(2, 0, x.dim(2)?));
                let dweight = needs_weight.then(|| shape.products(dy, x, weight));
                Ok([dx.transpose()?, dweight.transpose()?])
            };
        record_with_bias(
            "conv-transpose1d",
            [x, self.weight()],
            self.bias(),
            y,
            gradients,
        )
    }
}

/// Makes a [`ConvTranspose1d`] with a bias, named and initialized as by [`candle_nn::conv_transpose1d`].
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn conv_transpose1d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: ConvTranspose1dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose1d> {
    let inner = candle_nn::conv_transpose1d(in_channels, out_channels, kernel_size, cfg, vb)?;
    Ok(ConvTranspose1d { inner })
}

/// Makes a [`ConvTranspose1d`] without a bias.
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn conv_transpose1d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: ConvTranspose1dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose1d> {
    let inner =
        candle_nn::conv_transpose1d_no_bias(in_channels, out_channels, kernel_size, cfg, vb)?;
    Ok(ConvTranspose1d { inner })
}
