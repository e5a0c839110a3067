use candle_core::{Module, Result, Tensor};

use super::bias::widened;
use super::layer::layer;

layer! {
    /// The transpose of a convolution over the last two dimensions, as [`candle_nn::ConvTranspose2d`]; f16 and bf16 are computed in f32 and
    /// rounded at the end, so that gradients are summed in f32. It keeps its inputs, in f32.
    ConvTranspose2d(ConvTranspose2dConfig, "(in, out, kernel height, kernel width)"),
    conv_transpose2d, conv_transpose2d_no_bias
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
