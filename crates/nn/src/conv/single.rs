use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv1dConfig, VarBuilder};

use super::bias::record_with_bias;
use super::sliding::Sliding;

/// A convolution over the last dimension, as [`candle_nn::Conv1d`]. It keeps its output.
#[derive(Clone, Debug)]
pub struct Conv1d {
    inner: candle_nn::Conv1d,
}

impl Conv1d {
    /// A layer with a weight (out, in / groups, kernel) and a bias (out).
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv1dConfig) -> Self {
        Self {
            inner: candle_nn::Conv1d::new(weight, bias, config),
        }
    }

    /// Padding, stride, dilation and groups.
    pub fn config(&self) -> &Conv1dConfig {
        self.inner.config()
    }

    /// The weight (out, in / groups, kernel).
    pub fn weight(&self) -> &Tensor {
        self.inner.weight()
    }

    /// The bias (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.inner.bias()
    }
}

impl Module for Conv1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Conv1dConfig {
            padding,
            stride,
            dilation,
            groups,
            cudnn_fwd_algo,
        } = *self.config();
        let shape = Sliding {
            padding,
            stride,
            dilation,
            groups,
        };
        let y = shape.narrow(&x.detach(), &self.weight().detach(), cudnn_fwd_algo)?;
        let gradients =
            move |x: &Tensor, weight: &Tensor, dy: &Tensor, [needs_x, needs_weight]: [bool; 2]| {
                let dx = needs_x.then(|| shape.widen(dy, weight, x.dim(2)?));
                let dweight = needs_weight.then(|| shape.products(x, dy, weight));
                Ok([dx.transpose()?, dweight.transpose()?])
            };
        record_with_bias("conv1d", [x, self.weight()], self.bias(), y, gradients)
    }
}

/// Makes a [`Conv1d`] with a bias, named and initialized as by [`candle_nn::conv1d`].
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn conv1d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    let inner = candle_nn::conv1d(in_channels, out_channels, kernel_size, cfg, vb)?;
    Ok(Conv1d { inner })
}

/// Makes a [`Conv1d`] without a bias.
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn conv1d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    let inner = candle_nn::conv1d_no_bias(in_channels, out_channels, kernel_size, cfg, vb)?;
    Ok(Conv1d { inner })
}
