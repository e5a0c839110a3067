//! The first block of a ResNet-18 with BatchNorm, in training: 32 images, 64 channels of 56 × 56.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn::{self, ops};
use candle_nn::{Conv2dConfig, Module, ModuleT, VarBuilder, VarMap};

const CHANNELS: usize = 64;

fn config() -> Conv2dConfig {
    Conv2dConfig {
        padding: 1,
        ..Conv2dConfig::default()
    }
}

fn builder(device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_varmap(&VarMap::new(), DType::F32, device)
}

pub struct Ours([(nn::Conv2d, nn::BatchNorm); 2]);

impl Ours {
    pub fn new(device: &Device) -> Result<Self> {
        let layer = |vb: VarBuilder| -> Result<_> {
            let conv = nn::conv2d_no_bias(CHANNELS, CHANNELS, 3, config(), vb.pp("conv"))?;
            Ok((conv, nn::batch_norm(CHANNELS, 1e-5, vb.pp("norm"))?))
        };
        let vb = builder(device);
        Ok(Self([layer(vb.pp(0))?, layer(vb.pp(1))?]))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [(first, first_norm), (second, second_norm)] = &self.0;
        let relu = nn::Activation::Relu;
        let hidden = first_norm.forward_t(&first.forward(x)?, true)?;
        let hidden = second.forward(&relu.forward(&hidden)?)?;
        let hidden = second_norm.forward_t(&hidden, true)?;
        relu.forward(&ops::add(&hidden, x)?)
    }
}

pub struct Candles([(candle_nn::Conv2d, candle_nn::BatchNorm); 2]);

impl Candles {
    pub fn new(device: &Device) -> Result<Self> {
        let layer = |vb: VarBuilder| -> Result<_> {
            let conv = candle_nn::conv2d_no_bias(CHANNELS, CHANNELS, 3, config(), vb.pp("conv"))?;
            Ok((conv, candle_nn::batch_norm(CHANNELS, 1e-5, vb.pp("norm"))?))
        };
        let vb = builder(device);
        Ok(Self([layer(vb.pp(0))?, layer(vb.pp(1))?]))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [(first, first_norm), (second, second_norm)] = &self.0;
        let hidden = first_norm.forward_t(&first.forward(x)?, true)?;
        let hidden = second.forward(&hidden.relu()?)?;
        (second_norm.forward_t(&hidden, true)? + x)?.relu()
    }
}

/// Images whose gradient is asked for, as those of a block in the middle are.
pub fn images(device: &Device) -> Result<Tensor> {
    Ok(Var::randn(0f32, 1., (32, CHANNELS, 56, 56), device)?.into_inner())
}
