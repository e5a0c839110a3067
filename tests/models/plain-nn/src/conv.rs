//! `candle_nn::conv`. On the CPU candle 0.11.1 returns wrong gradients for `conv1d`, of the weight always and of the input in batches
//! without padding, and none for `conv_transpose1d`. Here both are sums of matrix products, one for each position in the kernel.
//!
//! A sum keeps the product of each position, while candle_nn's `Conv1d` keeps its input only. Memory is therefore measured with
//! candle_nn's, by the environment variable `PLAIN_CONV1D=candle`: its bytes are right, its gradients are not.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;
pub use candle_nn::conv::*;
use std::sync::LazyLock;

static CANDLE: LazyLock<bool> =
    LazyLock::new(|| std::env::var("PLAIN_CONV1D").is_ok_and(|value| value == "candle"));

#[derive(Clone, Debug)]
pub struct Conv1d(candle_nn::Conv1d);

impl Conv1d {
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv1dConfig) -> Self {
        Self(candle_nn::Conv1d::new(weight, bias, config))
    }

    pub fn config(&self) -> &Conv1dConfig {
        self.0.config()
    }

    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }
}

impl Module for Conv1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if *CANDLE {
            return self.0.forward(x);
        }
        let config = self.config();
        let (batch, channels, _) = x.dims3()?;
        let (out, own, kernel) = self.weight().dims3()?;
        let x = x
            .pad_with_zeros(2, config.padding, config.padding)?
            .contiguous()?;
        let length = (x.dim(2)? - config.dilation * (kernel - 1) - 1) / config.stride + 1;
        let weight = self
            .weight()
            .reshape((config.groups, out / config.groups, own, kernel))?;
        let mut sum = None;
        for at in 0..kernel {
            let taken = x.index_select(
                &positions(at * config.dilation, config.stride, length, &x)?,
                2,
            )?;
            let taken = taken.reshape((batch, config.groups, channels / config.groups, length))?;
            let product = product(&weight.narrow(3, at, 1)?.squeeze(3)?, &taken)?;
            sum = Some(match sum {
                Some(sum) => (sum + product)?,
                None => product,
            });
        }
        let Some(sum) = sum else {
            candle_core::bail!("conv1d with an empty kernel")
        };
        add_bias(sum.reshape((batch, out, length))?, self.bias())
    }
}

#[derive(Clone, Debug)]
pub struct ConvTranspose1d(candle_nn::ConvTranspose1d);

impl ConvTranspose1d {
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: ConvTranspose1dConfig) -> Self {
        Self(candle_nn::ConvTranspose1d::new(weight, bias, config))
    }

    pub fn config(&self) -> &ConvTranspose1dConfig {
        self.0.config()
    }

    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }
}

impl Module for ConvTranspose1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let config = self.config();
        let (batch, channels, length) = x.dims3()?;
        let (_, own, kernel) = self.weight().dims3()?;
        let (groups, out) = (config.groups, own * config.groups);
        let full = (length - 1) * config.stride
            + config.dilation * (kernel - 1)
            + config.output_padding
            + 1;
        let weight = self
            .weight()
            .reshape((groups, channels / groups, own, kernel))?;
        let x = x.reshape((batch, groups, channels / groups, length))?;
        let mut sum = Tensor::zeros((batch, out, full), x.dtype(), x.device())?;
        for at in 0..kernel {
            let given = product(&weight.narrow(3, at, 1)?.squeeze(3)?.t()?, &x)?
                .reshape((batch, out, length))?;
            sum = sum.index_add(
                &positions(at * config.dilation, config.stride, length, &x)?,
                &given,
                2,
            )?;
        }
        add_bias(
            sum.narrow(2, config.padding, full - 2 * config.padding)?
                .contiguous()?,
            self.bias(),
        )
    }
}

fn positions(first: usize, stride: usize, count: usize, like: &Tensor) -> Result<Tensor> {
    Tensor::from_iter(
        (0..count).map(|at| (first + at * stride) as u32),
        like.device(),
    )
}

/// (groups, out, in) times (batch, groups, in, length).
fn product(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
    weight
        .broadcast_left(x.dim(0)?)?
        .contiguous()?
        .matmul(&x.contiguous()?)
}

fn add_bias(x: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match bias {
        Some(bias) => x.broadcast_add(&bias.reshape((1, (), 1))?),
        None => Ok(x),
    }
}

pub fn conv1d(
    i: usize,
    o: usize,
    kernel: usize,
    config: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    candle_nn::conv1d(i, o, kernel, config, vb).map(Conv1d)
}

pub fn conv1d_no_bias(
    i: usize,
    o: usize,
    kernel: usize,
    config: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    candle_nn::conv1d_no_bias(i, o, kernel, config, vb).map(Conv1d)
}

pub fn conv_transpose1d(
    i: usize,
    o: usize,
    kernel: usize,
    config: ConvTranspose1dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose1d> {
    candle_nn::conv_transpose1d(i, o, kernel, config, vb).map(ConvTranspose1d)
}

pub fn conv_transpose1d_no_bias(
    i: usize,
    o: usize,
    kernel: usize,
    config: ConvTranspose1dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose1d> {
    candle_nn::conv_transpose1d_no_bias(i, o, kernel, config, vb).map(ConvTranspose1d)
}
