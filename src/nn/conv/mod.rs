//! Convolutions over one dimension, as [`candle_nn::conv`], with gradients that are right on every device.
//!
//! candle 0.11.1 computes wrong ones for `conv1d` on the CPU: of the weight always, because it multiplies by the strided kernel instead
//! of its contiguous copy, and of the input in batches without padding. `conv_transpose1d` has no backward pass there, and its output
//! is wrong in batches without padding. Convolutions over two dimensions are candle's.

mod sliding;

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;
pub use candle_nn::conv::*;

use super::graph::{Backward, record};
use sliding::Sliding;

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
            ..
        } = *self.config();
        let shape = Sliding {
            padding,
            stride,
            dilation,
            groups,
        };
        let y = shape.narrow(&x.detach(), &self.weight().detach())?;
        let y = record(
            "conv1d",
            [x, self.weight()],
            y,
            move |given: Backward<2>| {
                let ([x, weight], [needs_x, needs_weight]) = (&given.inputs, given.needs);
                let dx = needs_x.then(|| shape.widen(&given.gradient, weight, x.dim(2)?));
                let dweight = needs_weight.then(|| shape.products(x, &given.gradient, weight));
                Ok([dx.transpose()?, dweight.transpose()?])
            },
        )?;
        add_bias(y, self.bias())
    }
}

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
        let y = record(
            "conv-transpose1d",
            [x, self.weight()],
            y,
            move |given: Backward<2>| {
                let ([x, weight], [needs_x, needs_weight]) = (&given.inputs, given.needs);
                let dx = needs_x.then(|| {
                    shape
                        .narrow(&given.gradient, weight)?
                        .narrow(2, 0, x.dim(2)?)
                });
                let dweight = needs_weight.then(|| shape.products(&given.gradient, x, weight));
                Ok([dx.transpose()?, dweight.transpose()?])
            },
        )?;
        add_bias(y, self.bias())
    }
}

fn add_bias(y: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match bias {
        Some(bias) => y.broadcast_add(&bias.reshape((1, (), 1))?),
        None => Ok(y),
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
