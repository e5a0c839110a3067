//! Layers with a kernel that slides over a sequence.

use candle_core::{Module, Result, Tensor, bail};
use candle_nn::Conv1dConfig;

use super::layer::{convolves_in_range, layer, record_with_bias, widened};
use crate::kernel::{count_in_range, in_range};

layer! {
    /// A convolution over the last dimension, as [`candle_nn::Conv1d`]. It keeps its output.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::conv::{Conv1d, Conv1dConfig, conv1d};
    /// use candle_headroom_nn::{Module, VarBuilder, VarMap};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let config = Conv1dConfig { padding: 1, ..Default::default() };
    /// let conv = conv1d(4, 8, 3, config, vb)?;
    /// let x = Tensor::randn(0f32, 1., (2, 4, 10), &Device::Cpu)?; // [batch, channels, length]
    /// assert_eq!(conv.forward(&x)?.dims(), [2, 8, 10]);
    /// assert_eq!(conv.weight().dims(), [8, 4, 3]);
    /// assert_eq!((conv.bias().expect("a bias").dims(), conv.config().padding), (&[8][..], 1));
    ///
    /// let tied = Conv1d::new(conv.weight().clone(), None, config); // the same weight, without the bias
    /// assert_eq!((tied.forward(&x)?.dims(), tied.bias().is_none()), (conv.forward(&x)?.dims(), true));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    Conv1d(Conv1dConfig, "(out, in / groups, kernel)"),
    conv1d "with", conv1d_no_bias "without"
}

impl Module for Conv1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let shape = Sliding(*self.config());
        let y = shape.narrow(&x.detach(), &self.weight().detach())?;
        let gradients =
            move |x: &Tensor, weight: &Tensor, dy: &Tensor, [needs_x, needs_weight]: [bool; 2]| {
                let dx = needs_x.then(|| shape.widen(dy, weight, x.dim(2)?));
                let dweight = needs_weight.then(|| shape.products(x, dy, weight));
                Ok([dx.transpose()?, dweight.transpose()?])
            };
        record_with_bias("conv1d", [x, self.weight()], self.bias(), y, gradients)
    }
}

layer! {
    /// The transpose of a convolution over the last dimension, as [`candle_nn::ConvTranspose1d`], with a backward pass. It keeps its output.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::conv::{ConvTranspose1d, ConvTranspose1dConfig, conv_transpose1d};
    /// use candle_headroom_nn::{Module, VarBuilder, VarMap};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let config = ConvTranspose1dConfig { stride: 2, ..Default::default() };
    /// let conv = conv_transpose1d(4, 8, 2, config, vb)?;
    /// let x = Tensor::randn(0f32, 1., (2, 4, 5), &Device::Cpu)?; // [batch, channels, length]
    /// assert_eq!(conv.forward(&x)?.dims(), [2, 8, 10]);
    /// assert_eq!(conv.weight().dims(), [4, 8, 2]);
    /// assert_eq!((conv.bias().expect("a bias").dims(), conv.config().stride), (&[8][..], 2));
    ///
    /// let tied = ConvTranspose1d::new(conv.weight().clone(), None, config); // the same weight, without the bias
    /// assert_eq!((tied.forward(&x)?.dims(), tied.bias().is_none()), (conv.forward(&x)?.dims(), true));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ConvTranspose1d(ConvTranspose1dConfig, "(in, out / groups, kernel)"),
    conv_transpose1d "with", conv_transpose1d_no_bias "without"
}

impl Module for ConvTranspose1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let config = self.config();
        let shape = Sliding(Conv1dConfig {
            padding: config.padding,
            stride: config.stride,
            dilation: config.dilation,
            groups: config.groups,
            cudnn_fwd_algo: None,
        });
        let length = shape.widest(x.dim(2)?, self.weight().dim(2)?)? + config.output_padding;
        let y = shape.widen(&x.detach(), &self.weight().detach(), length)?;
        let gradients =
            move |x: &Tensor, weight: &Tensor, dy: &Tensor, [needs_x, needs_weight]: [bool; 2]| {
                let dx = needs_x.then(|| shape.narrow(dy, weight)?.narrow(2, 0, x.dim(2)?));
                let dweight = needs_weight.then(|| shape.products(dy, x, weight));
                Ok([dx.transpose()?, dweight.transpose()?])
            };
        let (weight, bias) = (self.weight(), self.bias());
        record_with_bias("conv-transpose1d", [x, weight], bias, y, gradients)
    }
}

/// How a kernel slides over a long sequence and meets the positions of a short one. A convolution goes from the long one to the short
/// one; its input's gradient, like the transposed convolution, the other way.
#[derive(Clone, Copy)]
struct Sliding(Conv1dConfig);

impl Sliding {
    /// The convolution of a long sequence.
    fn narrow(self, long: &Tensor, weight: &Tensor) -> Result<Tensor> {
        self.check(weight)?;
        let (reach, padding) = (self.reach(1, weight.dim(2)?), self.0.padding);
        if long.dims3()?.2 + 2 * padding < reach {
            bail!(
                "conv1d: a kernel that reaches over {reach} positions does not fit into {:?} with a padding of {padding}",
                long.shape()
            )
        }
        let positions = (long.dim(2)? + 2 * padding - reach) / self.0.stride + 1;
        convolves_in_range("conv1d", long, weight, positions)?;
        long.contiguous()?.conv1d_with_algo(
            &weight.contiguous()?,
            padding,
            self.0.stride,
            self.0.dilation,
            self.0.groups,
            self.0.cudnn_fwd_algo,
        )
    }

    /// What candle divides by, or assumes.
    fn check(self, weight: &Tensor) -> Result<()> {
        let (outer, inner, kernel) = weight.dims3()?;
        let Conv1dConfig { stride, groups, .. } = self.0;
        if stride == 0 || groups == 0 || outer * inner * kernel == 0 || outer % groups != 0 {
            bail!(
                "conv1d: stride {stride}, groups {groups} and weight {:?} must not be zero, and the groups must divide the channels",
                weight.shape()
            )
        }
        Ok(())
    }

    /// Its transpose: a long sequence of this length.
    fn widen(self, short: &Tensor, weight: &Tensor, length: usize) -> Result<Tensor> {
        self.check(weight)?;
        // Without cuDNN a column for each position, and then their sums.
        let (of_column, channels) = (weight.dim(1)? * weight.dim(2)?, weight.dim(1)?);
        let positions = (short.dim(2)? * of_column).max(length * channels);
        let elements = short.dim(0)? * self.0.groups * positions;
        count_in_range("conv-transpose1d", short.device(), elements)?;
        in_range("conv-transpose1d", [short])?;
        let (short, weight) = (short.contiguous()?, weight.contiguous()?);
        if short.dims3()?.2 == 0 {
            bail!("conv-transpose1d: no positions in {:?}", short.shape())
        }
        let config = self.0;
        // candle subtracts the padding from the strides before it adds the kernel. Where they are less, it is cut off here.
        let strides = (short.dim(2)? - 1) * config.stride;
        let padding = if strides < 2 * config.padding {
            0
        } else {
            config.padding
        };
        let first = config.padding - padding;
        let reached = self.reach(short.dim(2)?, weight.dim(2)?) - 2 * padding;
        let more = (first + length).saturating_sub(reached);
        let widen = |short: &Tensor| {
            let (stride, dilation, groups) = (config.stride, config.dilation, config.groups);
            short.conv_transpose1d(&weight, padding, more, stride, dilation, groups)
        };
        // One sample after the other on the CPU: candle's matrix product takes the rows of all batches for adjacent.
        let long = match short.dim(0)? {
            batch if batch > 1 && short.device().is_cpu() => {
                let samples = (0..batch).map(|at| widen(&short.narrow(0, at, 1)?));
                Tensor::cat(&samples.collect::<Result<Vec<_>>>()?, 0)?
            }
            _ => widen(&short)?,
        };
        long.narrow(2, first, length)
    }

    /// Number of positions that the kernel meets, with the padding.
    fn reach(self, short: usize, kernel: usize) -> usize {
        short.saturating_sub(1) * self.0.stride + self.0.dilation * kernel.saturating_sub(1) + 1
    }

    /// Number of positions that a short sequence of this length comes from at least.
    fn widest(self, short: usize, kernel: usize) -> Result<usize> {
        let reach = self.reach(short, kernel);
        match reach.checked_sub(2 * self.0.padding) {
            Some(length) => Ok(length),
            None => bail!(
                "conv-transpose1d: a padding of {} leaves nothing of {reach} positions",
                self.0.padding
            ),
        }
    }

    /// The gradient of the weight (short channels, long channels / groups, kernel): for each position in the kernel the product of the
    /// two sequences, f16 and bf16 in f32.
    fn products(self, long: &Tensor, short: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let wide = widened(weight.dtype());
        let (outer, inner, kernel) = weight.dims3()?;
        let (batch, channels, length) = short.dims3()?;
        let groups = self.0.groups;
        let grouped = |tensor: &Tensor, channels: usize| {
            tensor.reshape((batch, groups, channels / groups, length))
        };
        let short = grouped(&short.to_dtype(wide)?, channels)?.permute((1, 2, 0, 3))?;
        let short = short.reshape((groups, outer / groups, batch * length))?;
        let long = long.to_dtype(wide)?;
        // Also the positions that the last stride reaches over.
        let missing = self
            .reach(length, kernel)
            .saturating_sub(long.dim(2)? + self.0.padding);
        let long = long
            .pad_with_zeros(2, self.0.padding, missing)?
            .contiguous()?;
        let products = (0..kernel).map(|at| {
            let met = (0..length).map(|to| (at * self.0.dilation + to * self.0.stride) as u32);
            let met = Tensor::from_iter(met, long.device())?;
            let long =
                grouped(&long.index_select(&met, 2)?, long.dim(1)?)?.permute((1, 0, 3, 2))?;
            let long = long.reshape((groups, batch * length, inner))?;
            short.matmul(&long)?.reshape((outer, inner))
        });
        Tensor::stack(&products.collect::<Result<Vec<_>>>()?, 2)?.to_dtype(weight.dtype())
    }
}
