use candle_core::{Module, Result, Tensor};
use candle_nn::Conv1dConfig;

use super::bias::record_with_bias;
use super::layer::layer;
use super::sliding::Sliding;

layer! {
    /// A convolution over the last dimension, as [`candle_nn::Conv1d`]. It keeps its output.
    Conv1d(Conv1dConfig, "(out, in / groups, kernel)"),
    conv1d, conv1d_no_bias
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
