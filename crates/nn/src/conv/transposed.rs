use candle_core::{Module, Result, Tensor};
use candle_nn::ConvTranspose1dConfig;

use super::bias::record_with_bias;
use super::layer::layer;
use super::sliding::Sliding;

layer! {
    /// The transpose of a convolution over the last dimension, as [`candle_nn::ConvTranspose1d`], with a backward pass. It keeps its output.
    ConvTranspose1d(ConvTranspose1dConfig, "(in, out / groups, kernel)"),
    conv_transpose1d, conv_transpose1d_no_bias
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
