use candle_core::{DType, Module, Result, Tensor, bail};
use candle_nn::{BatchNorm, Conv2dConfig};

use super::layer::{convolves_in_range, layer, record_with_bias, widened};
use crate::kernel::in_range;

layer! {
    /// A convolution over the last two dimensions, as [`candle_nn::Conv2d`]. It keeps its output.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::conv::{Conv2d, Conv2dConfig, conv2d};
    /// use candle_headroom_nn::{Module, VarBuilder, VarMap};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let config = Conv2dConfig { padding: 1, stride: 2, ..Default::default() };
    /// let conv = conv2d(3, 8, 3, config, vb)?; // 3 to 8 channels, a kernel of 3 x 3
    /// let x = Tensor::randn(0f32, 1., (2, 3, 16, 16), &Device::Cpu)?; // [batch, channels, height, width]
    /// assert_eq!(conv.forward(&x)?.dims(), [2, 8, 8, 8]);
    /// assert_eq!(conv.weight().dims(), [8, 3, 3, 3]);
    /// assert_eq!((conv.bias().expect("a bias").dims(), conv.config().stride), (&[8][..], 2));
    ///
    /// let tied = Conv2d::new(conv.weight().clone(), None, config); // the same weight, without the bias
    /// assert_eq!((tied.forward(&x)?.dims(), tied.bias().is_none()), (conv.forward(&x)?.dims(), true));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    Conv2d(Conv2dConfig, "(out, in / groups, kernel height, kernel width)"),
    conv2d "with", conv2d_no_bias "without"
}

impl Conv2d {
    /// Returns a layer that also does what a BatchNorm after it does in evaluation.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::{BatchNorm, Conv2d, Module};
    ///
    /// let weight = Tensor::ones((1, 1, 1, 1), DType::F32, &Device::Cpu)?; // leaves x as it is
    /// let conv = Conv2d::new(weight, None, Default::default());
    /// let channel = |value: f32| Tensor::new(&[value], &Device::Cpu);
    /// let norm = BatchNorm::new(1, channel(1.)?, channel(4.)?, channel(10.)?, channel(5.)?, 0.)?;
    /// let both = conv.absorb_bn(&norm)?; // (x − 1) / √4 · 10 + 5
    /// let x = Tensor::full(3f32, (1, 1, 2, 2), &Device::Cpu)?; // [batch, channels, height, width]
    /// assert_eq!(both.forward(&x)?.flatten_all()?.to_vec1::<f32>()?, [15.; 4]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the BatchNorm has no weight and bias, or not the number of channels of the output.
    pub fn absorb_bn(&self, bn: &BatchNorm) -> Result<Self> {
        Ok(self.inner.absorb_bn(bn)?.into())
    }
}

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let config = *self.config();
        check(x, self.weight(), config)?;
        let y = forward(&x.detach(), &self.weight().detach(), config)?;
        let gradients =
            move |x: &Tensor, weight: &Tensor, dy: &Tensor, [needs_x, needs_weight]: [bool; 2]| {
                let dx = needs_x.then(|| of_input(x, weight, dy, config));
                let dweight = needs_weight.then(|| of_weight(x, weight, dy, config));
                Ok([dx.transpose()?, dweight.transpose()?])
            };
        record_with_bias("conv2d", [x, self.weight()], self.bias(), y, gradients)
    }
}

/// What candle divides by, subtracts from, or assumes.
fn check(x: &Tensor, weight: &Tensor, config: Conv2dConfig) -> Result<()> {
    let (_, _, height, width) = x.dims4()?;
    let (out, _, kernel_height, kernel_width) = weight.dims4()?;
    let (padding, stride) = (config.padding, config.stride);
    let (dilation, groups) = (config.dilation, config.groups);
    if stride * dilation * groups * weight.elem_count() == 0 || out % groups != 0 {
        bail!(
            "conv2d: stride {stride}, dilation {dilation}, groups {groups} and weight {:?} must not be zero, and the groups must \
             divide the channels",
            weight.shape()
        )
    }
    let fits = |size, kernel| dilation * (kernel - 1) < size + 2 * padding;
    if !fits(height, kernel_height) || !fits(width, kernel_width) {
        bail!(
            "conv2d: a kernel {:?} with a dilation of {dilation} does not fit into {:?} with a padding of {padding}",
            weight.shape(),
            x.shape()
        )
    }
    let count =
        |size: usize, kernel| (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
    let positions = count(height, kernel_height) * count(width, kernel_width);
    convolves_in_range("conv2d", x, weight, positions)
}

/// candle's output; bf16, which candle's `conv2d` does not support on the CPU, in f32 there.
fn forward(x: &Tensor, weight: &Tensor, config: Conv2dConfig) -> Result<Tensor> {
    let is_bf16 = [x, weight].map(Tensor::dtype) == [DType::BF16; 2];
    let prepared = |tensor: &Tensor| match is_bf16 && x.device().is_cpu() {
        true => tensor.to_dtype(DType::F32)?.contiguous(),
        false => tensor.contiguous(),
    };
    let y = prepared(x)?.conv2d_with_algo(
        &prepared(weight)?,
        config.padding,
        config.stride,
        config.dilation,
        config.groups,
        config.cudnn_fwd_algo,
    )?;
    y.to_dtype(x.dtype())
}

/// The gradient of the input: the transposed convolution.
fn of_input(x: &Tensor, weight: &Tensor, dy: &Tensor, config: Conv2dConfig) -> Result<Tensor> {
    let (padding, stride) = (config.padding, config.stride);
    let (dilation, groups) = (config.dilation, config.groups);
    let missing = |dim: usize| -> Result<usize> {
        let reached = (dy.dim(dim)? - 1) * stride + dilation * (weight.dim(dim)? - 1) + 1;
        Ok((padding + x.dim(dim)?).saturating_sub(reached))
    };
    // candle adds as many to the height as to the width. What is too much is cut off with the padding.
    let missing = missing(2)?.max(missing(3)?);
    let parts = dy
        .chunk(groups, 1)?
        .into_iter()
        .zip(weight.chunk(groups, 0)?);
    let parts = parts.map(|(dy, weight)| {
        let (dy, weight) = (dy.contiguous()?, weight.contiguous()?);
        dy.conv_transpose2d(&weight, 0, missing, stride, dilation)
    });
    Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 1)?
        .narrow(2, padding, x.dim(2)?)?
        .narrow(3, padding, x.dim(3)?)
}

/// The gradient of the weight: the convolution of the input with the output's gradient, channels in place of the batch and stride
/// in place of dilation; f16 and bf16 in f32.
fn of_weight(x: &Tensor, weight: &Tensor, dy: &Tensor, config: Conv2dConfig) -> Result<Tensor> {
    let (padding, stride) = (config.padding, config.stride);
    let (dilation, groups) = (config.dilation, config.groups);
    let (_, _, height, width) = weight.dims4()?;
    let of_channels = |tensor: &Tensor| {
        let tensor = tensor.to_dtype(widened(weight.dtype()))?;
        tensor.transpose(0, 1)?.contiguous()
    };
    let parts = x.chunk(groups, 1)?.into_iter().zip(dy.chunk(groups, 1)?);
    let parts = parts.map(|(x, dy)| {
        let products = of_channels(&x)?.conv2d(&of_channels(&dy)?, padding, dilation, stride, 1)?;
        // More where the last stride does not reach the end.
        let products = products.narrow(2, 0, height)?.narrow(3, 0, width)?;
        products.transpose(0, 1)
    });
    Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?.to_dtype(weight.dtype())
}

layer! {
    /// The transpose of a convolution over the last two dimensions, as [`candle_nn::ConvTranspose2d`]; f16 and bf16 are computed in f32 and
    /// rounded at the end, so that gradients are summed in f32. It keeps its inputs, in f32.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::conv::{ConvTranspose2d, ConvTranspose2dConfig, conv_transpose2d};
    /// use candle_headroom_nn::{Module, VarBuilder, VarMap};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let config = ConvTranspose2dConfig { stride: 2, ..Default::default() };
    /// let conv = conv_transpose2d(8, 3, 2, config, vb)?;
    /// let x = Tensor::randn(0f32, 1., (1, 8, 5, 5), &Device::Cpu)?; // [batch, channels, height, width]
    /// assert_eq!(conv.forward(&x)?.dims(), [1, 3, 10, 10]);
    /// assert_eq!(conv.weight().dims(), [8, 3, 2, 2]);
    /// assert_eq!((conv.bias().expect("a bias").dims(), conv.config().stride), (&[3][..], 2));
    ///
    /// let tied = ConvTranspose2d::new(conv.weight().clone(), None, config); // the same weight, without the bias
    /// assert_eq!((tied.forward(&x)?.dims(), tied.bias().is_none()), (conv.forward(&x)?.dims(), true));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ConvTranspose2d(ConvTranspose2dConfig, "(in, out, kernel height, kernel width)"),
    conv_transpose2d "with", conv_transpose2d_no_bias "without"
}

impl Module for ConvTranspose2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_range("conv-transpose2d", [x])?;
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
