//! A convolutional net with batch normalization.

use candle_core::{Device, Result, Tensor};
use candle_headroom::nn::{
    BatchNorm, Conv2d, Conv2dConfig, Linear, Module, ModuleT, VarBuilder, batch_norm,
    conv2d_no_bias, linear,
};

use crate::digits::SIDE;

/// Three convolutions, of which the second and the third halve the image, and a linear layer.
pub struct Net {
    blocks: Vec<(Conv2d, BatchNorm)>,
    head: Linear,
}

impl Net {
    pub fn new(vb: VarBuilder) -> Result<Self> {
        const CHANNELS: [usize; 4] = [1, 24, 48, 96];
        let mut blocks = Vec::new();
        for (number, sides) in CHANNELS.windows(2).enumerate() {
            let vb = vb.pp(format!("blocks.{number}"));
            let config = Conv2dConfig {
                padding: 1,
                stride: if number == 0 { 1 } else { 2 },
                ..Conv2dConfig::default()
            };
            let (inputs, outputs) = (sides[0], sides[1]);
            // The norm after it removes a bias.
            let conv = conv2d_no_bias(inputs, outputs, 3, config, vb.pp("conv"))?;
            blocks.push((conv, batch_norm(outputs, 1e-5, vb.pp("norm"))?));
        }
        let cells = SIDE / 4 * SIDE / 4;
        let head = linear(cells * CHANNELS[3], 10, vb.pp("head"))?;
        Ok(Self { blocks, head })
    }

    pub fn device(&self) -> &Device {
        self.head.weight().device()
    }

    /// The running statistics, which the forward pass of training changes.
    pub fn statistics(&self) -> impl Iterator<Item = &Tensor> {
        let norms = self.blocks.iter().map(|(_, norm)| norm);
        norms.flat_map(|norm| [norm.running_mean(), norm.running_var()])
    }
}

impl ModuleT for Net {
    /// From images, `(samples, 1, 8, 8)`, to scores, `(samples, 10)`.
    fn forward_t(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        let mut x = images.clone();
        for (conv, norm) in &self.blocks {
            x = norm.forward_t(&conv.forward(&x)?, train)?.relu()?;
        }
        self.head.forward(&x.flatten_from(1)?)
    }
}
