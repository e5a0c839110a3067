use candle_core::conv::CudnnFwdAlgo;
use candle_core::shape::Dim;
use candle_core::{Module, Result, Tensor, ToUsize2};
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig};

use super::ops;
use super::{Conv1d, Conv2d, ConvTranspose1d};

/// Methods of candle's tensors with right gradients, in the place of those whose gradients candle 0.11.1 leaves out or gets wrong:
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom_nn::WithGradients;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Var::randn(0f32, 1., (2, 3, 32, 32), &Device::Cpu)?;
/// let y = x.with_gradients().max_pool2d_with_stride(3, 2)?;
/// assert!(y.sum_all()?.backward()?.get(&x).is_some());
/// # Ok(())
/// # }
/// ```
///
/// `scripts/trainable-copy.sh` puts `with_gradients()` before these methods in the copy of a crate. The functions of [`ops`] do the
/// same, with any padding for pooling; convolutions are the layers [`Conv1d`], [`Conv2d`] and [`ConvTranspose1d`].
pub trait WithGradients {
    /// The tensor, with other methods.
    fn with_gradients(&self) -> Differentiable<'_>;
}

impl WithGradients for Tensor {
    fn with_gradients(&self) -> Differentiable<'_> {
        Differentiable(self)
    }
}

/// A tensor with methods of candle's names and signatures, and right gradients. See [`WithGradients`].
#[derive(Clone, Copy, Debug)]
pub struct Differentiable<'a>(&'a Tensor);

impl Differentiable<'_> {
    /// As [`Tensor::max_pool2d`], by [`ops::max_pool2d`].
    ///
    /// # Errors
    /// Those of [`ops::max_pool2d`].
    pub fn max_pool2d(self, size: impl ToUsize2) -> Result<Tensor> {
        let size = size.to_usize2();
        ops::max_pool2d(self.0, size, size, 0)
    }

    /// As [`Tensor::max_pool2d_with_stride`], by [`ops::max_pool2d`].
    ///
    /// # Errors
    /// Those of [`ops::max_pool2d`].
    pub fn max_pool2d_with_stride<T: ToUsize2>(self, kernel_size: T, stride: T) -> Result<Tensor> {
        ops::max_pool2d(self.0, kernel_size, stride, 0)
    }

    /// As [`Tensor::avg_pool2d`], by [`ops::avg_pool2d`].
    ///
    /// # Errors
    /// Those of [`ops::avg_pool2d`].
    pub fn avg_pool2d(self, size: impl ToUsize2) -> Result<Tensor> {
        let size = size.to_usize2();
        ops::avg_pool2d(self.0, size, size, 0)
    }

    /// As [`Tensor::avg_pool2d_with_stride`], by [`ops::avg_pool2d`].
    ///
    /// # Errors
    /// Those of [`ops::avg_pool2d`].
    pub fn avg_pool2d_with_stride<T: ToUsize2>(self, kernel_size: T, stride: T) -> Result<Tensor> {
        ops::avg_pool2d(self.0, kernel_size, stride, 0)
    }

    /// As [`Tensor::interpolate1d`], by [`ops::upsample_nearest1d`].
    ///
    /// # Errors
    /// Those of [`ops::upsample_nearest1d`].
    pub fn interpolate1d(self, length: usize) -> Result<Tensor> {
        ops::upsample_nearest1d(self.0, length)
    }

    /// As [`Tensor::upsample_nearest1d`], by [`ops::upsample_nearest1d`].
    ///
    /// # Errors
    /// Those of [`ops::upsample_nearest1d`].
    pub fn upsample_nearest1d(self, length: usize) -> Result<Tensor> {
        ops::upsample_nearest1d(self.0, length)
    }

    /// As [`Tensor::interpolate2d`], by [`ops::upsample_nearest2d`].
    ///
    /// # Errors
    /// Those of [`ops::upsample_nearest2d`].
    pub fn interpolate2d(self, height: usize, width: usize) -> Result<Tensor> {
        ops::upsample_nearest2d(self.0, height, width)
    }

    /// As [`Tensor::upsample_nearest2d`], by [`ops::upsample_nearest2d`].
    ///
    /// # Errors
    /// Those of [`ops::upsample_nearest2d`].
    pub fn upsample_nearest2d(self, height: usize, width: usize) -> Result<Tensor> {
        ops::upsample_nearest2d(self.0, height, width)
    }

    /// As [`Tensor::upsample_bilinear2d`], by [`ops::upsample_bilinear2d`].
    ///
    /// # Errors
    /// Those of [`ops::upsample_bilinear2d`].
    pub fn upsample_bilinear2d(
        self,
        height: usize,
        width: usize,
        align_corners: bool,
    ) -> Result<Tensor> {
        ops::upsample_bilinear2d(self.0, height, width, align_corners)
    }

    /// As [`Tensor::conv1d`], by the layer [`Conv1d`].
    ///
    /// # Errors
    /// If the shapes do not match, the kernel does not fit, or stride or groups are zero.
    pub fn conv1d(
        self,
        kernel: &Tensor,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Tensor> {
        self.conv1d_with_algo(kernel, padding, stride, dilation, groups, None)
    }

    /// As [`Tensor::conv1d_with_algo`], by the layer [`Conv1d`].
    ///
    /// # Errors
    /// If the shapes do not match, the kernel does not fit, or stride or groups are zero.
    pub fn conv1d_with_algo(
        self,
        kernel: &Tensor,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
        cudnn_fwd_algo: Option<CudnnFwdAlgo>,
    ) -> Result<Tensor> {
        let config = Conv1dConfig {
            padding,
            stride,
            dilation,
            groups,
            cudnn_fwd_algo,
        };
        Conv1d::new(kernel.clone(), None, config).forward(self.0)
    }

    /// As [`Tensor::conv2d`], by the layer [`Conv2d`].
    ///
    /// # Errors
    /// If the shapes do not match, the kernel does not fit, or stride, dilation or groups are zero.
    pub fn conv2d(
        self,
        kernel: &Tensor,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Tensor> {
        self.conv2d_with_algo(kernel, padding, stride, dilation, groups, None)
    }

    /// As [`Tensor::conv2d_with_algo`], by the layer [`Conv2d`].
    ///
    /// # Errors
    /// If the shapes do not match, the kernel does not fit, or stride, dilation or groups are zero.
    pub fn conv2d_with_algo(
        self,
        kernel: &Tensor,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
        cudnn_fwd_algo: Option<CudnnFwdAlgo>,
    ) -> Result<Tensor> {
        let config = Conv2dConfig {
            padding,
            stride,
            dilation,
            groups,
            cudnn_fwd_algo,
        };
        Conv2d::new(kernel.clone(), None, config).forward(self.0)
    }

    /// As [`Tensor::conv_transpose1d`], by the layer [`ConvTranspose1d`].
    ///
    /// # Errors
    /// If the shapes do not match, stride or groups are zero, or the padding leaves nothing.
    pub fn conv_transpose1d(
        self,
        kernel: &Tensor,
        padding: usize,
        output_padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Tensor> {
        let config = ConvTranspose1dConfig {
            padding,
            output_padding,
            stride,
            dilation,
            groups,
        };
        ConvTranspose1d::new(kernel.clone(), None, config).forward(self.0)
    }

    /// As [`Tensor::scatter`], by [`ops::scatter`].
    ///
    /// # Errors
    /// Those of [`ops::scatter`].
    pub fn scatter(self, indexes: &Tensor, source: &Tensor, dim: impl Dim) -> Result<Tensor> {
        ops::scatter(self.0, indexes, source, dim)
    }

    /// As [`Tensor::scatter_add`], by [`ops::scatter_add`].
    ///
    /// # Errors
    /// Those of [`ops::scatter_add`].
    pub fn scatter_add(self, indexes: &Tensor, source: &Tensor, dim: impl Dim) -> Result<Tensor> {
        ops::scatter_add(self.0, indexes, source, dim)
    }

    /// As [`Tensor::unfold`], by [`ops::unfold`].
    ///
    /// # Errors
    /// Those of [`ops::unfold`].
    pub fn unfold(self, dim: impl Dim, size: usize, step: usize) -> Result<Tensor> {
        ops::unfold(self.0, dim, size, step)
    }
}
