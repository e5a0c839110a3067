use candle_core::conv::CudnnFwdAlgo;
use candle_core::shape::Dim;
use candle_core::{Module, Result, Tensor, ToUsize2};
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig};

use super::ops;
use super::{Conv1d, Conv2d, ConvTranspose1d};

/// Methods of candle's tensors with right gradients, in the place of those whose gradients candle 0.11.1 leaves out or gets wrong:
///
/// ```
/// use candle_core::{Device, Var};
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
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::WithGradients;
///
/// let x = Tensor::arange(0f32, 5., &Device::Cpu)?;
/// let differentiable = x.with_gradients(); // a copy of a reference
/// assert_eq!(differentiable.unfold(0, 3, 1)?.dims(), [3, 3]);
/// assert_eq!(differentiable.unfold(0, 2, 2)?.dims(), [2, 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Differentiable<'a>(&'a Tensor);

/// Methods of candle's names that return a tensor.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident |$x:ident $(, $argument:ident: $kind:ty)+| $body:expr;)+) => {
        impl Differentiable<'_> {
            $(
                $(#[$doc])*
                pub fn $name(self $(, $argument: $kind)+) -> Result<Tensor> {
                    let $x = self.0;
                    $body
                }
            )+
        }
    };
}

methods! {
    /// As [`Tensor::max_pool2d`], by [`ops::max_pool2d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::arange(0f32, 16., &Device::Cpu)?.reshape((1, 1, 4, 4))?; // [batch, channels, height, width]
    /// let y = x.with_gradients().max_pool2d(2)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [5., 7., 13., 15.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::max_pool2d`].
    max_pool2d |x, size: impl ToUsize2| {
        let size = size.to_usize2();
        ops::max_pool2d(x, size, size, 0)
    };

    /// As [`Tensor::max_pool2d_with_stride`], by [`ops::max_pool2d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::arange(0f32, 16., &Device::Cpu)?.reshape((1, 1, 4, 4))?; // [batch, channels, height, width]
    /// let y = x.with_gradients().max_pool2d_with_stride(3, 1)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [10., 11., 14., 15.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::max_pool2d`].
    max_pool2d_with_stride |x, kernel_size: impl ToUsize2, stride: impl ToUsize2| {
        ops::max_pool2d(x, kernel_size, stride, 0)
    };

    /// As [`Tensor::avg_pool2d`], by [`ops::avg_pool2d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::arange(0f32, 16., &Device::Cpu)?.reshape((1, 1, 4, 4))?; // [batch, channels, height, width]
    /// let y = x.with_gradients().avg_pool2d(2)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::avg_pool2d`].
    avg_pool2d |x, size: impl ToUsize2| {
        let size = size.to_usize2();
        ops::avg_pool2d(x, size, size, 0)
    };

    /// As [`Tensor::avg_pool2d_with_stride`], by [`ops::avg_pool2d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[1f32, 3., 7.], &Device::Cpu)?.reshape((1, 1, 3, 1))?; // one column
    /// let y = x.with_gradients().avg_pool2d_with_stride((2, 1), 1)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [2., 5.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::avg_pool2d`].
    avg_pool2d_with_stride |x, kernel_size: impl ToUsize2, stride: impl ToUsize2| {
        ops::avg_pool2d(x, kernel_size, stride, 0)
    };

    /// As [`Tensor::interpolate1d`], by [`ops::upsample_nearest1d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[[[1f32, 2., 3.]]], &Device::Cpu)?; // [batch, channels, length]
    /// let y = x.with_gradients().interpolate1d(6)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [1., 1., 2., 2., 3., 3.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::upsample_nearest1d`].
    interpolate1d |x, length: usize| ops::upsample_nearest1d(x, length);

    /// As [`Tensor::upsample_nearest1d`], by [`ops::upsample_nearest1d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[[[1f32, 2., 3.]]], &Device::Cpu)?; // [batch, channels, length]
    /// let y = x.with_gradients().upsample_nearest1d(6)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [1., 1., 2., 2., 3., 3.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::upsample_nearest1d`].
    upsample_nearest1d |x, length: usize| ops::upsample_nearest1d(x, length);

    /// As [`Tensor::interpolate2d`], by [`ops::upsample_nearest2d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[1f32, 2., 3., 4.], &Device::Cpu)?.reshape((1, 1, 2, 2))?; // [batch, channels, height, width]
    /// let y = x.with_gradients().interpolate2d(2, 4)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [1., 1., 2., 2., 3., 3., 4., 4.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::upsample_nearest2d`].
    interpolate2d |x, height: usize, width: usize| ops::upsample_nearest2d(x, height, width);

    /// As [`Tensor::upsample_nearest2d`], by [`ops::upsample_nearest2d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[1f32, 2., 3., 4.], &Device::Cpu)?.reshape((1, 1, 2, 2))?; // [batch, channels, height, width]
    /// let y = x.with_gradients().upsample_nearest2d(2, 4)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [1., 1., 2., 2., 3., 3., 4., 4.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::upsample_nearest2d`].
    upsample_nearest2d |x, height: usize, width: usize| ops::upsample_nearest2d(x, height, width);

    /// As [`Tensor::upsample_bilinear2d`], by [`ops::upsample_bilinear2d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[0f32, 2.], &Device::Cpu)?.reshape((1, 1, 1, 2))?; // one row
    /// let y = x.with_gradients().upsample_bilinear2d(1, 3, true)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [0., 1., 2.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::upsample_bilinear2d`].
    upsample_bilinear2d |x, height: usize, width: usize, align_corners: bool| {
        ops::upsample_bilinear2d(x, height, width, align_corners)
    };

    /// As [`Tensor::conv1d`], by the layer [`Conv1d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[[[1f32, 2., 3.]]], &Device::Cpu)?; // [batch, channels, length]
    /// let kernel = Tensor::new(&[[[1f32, 10.]]], &Device::Cpu)?; // [out, in, kernel]
    /// let y = x.with_gradients().conv1d(&kernel, 0, 1, 1, 1)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [21., 32.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shapes do not match, the kernel does not fit, or stride or groups are zero.
    conv1d |x, kernel: &Tensor, padding: usize, stride: usize, dilation: usize, groups: usize| {
        let x = Differentiable(x);
        x.conv1d_with_algo(kernel, padding, stride, dilation, groups, None)
    };

    /// As [`Tensor::conv1d_with_algo`], by the layer [`Conv1d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[[[1f32, 2., 3.]]], &Device::Cpu)?; // [batch, channels, length]
    /// let kernel = Tensor::new(&[[[1f32, 10.]]], &Device::Cpu)?; // [out, in, kernel]
    /// let y = x.with_gradients().conv1d_with_algo(&kernel, 1, 2, 1, 1, None)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [10., 32.]); // with a zero before, every second position
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shapes do not match, the kernel does not fit, or stride or groups are zero.
    conv1d_with_algo |
        x, kernel: &Tensor, padding: usize, stride: usize, dilation: usize, groups: usize,
        cudnn_fwd_algo: Option<CudnnFwdAlgo>
    | {
        let config = Conv1dConfig { padding, stride, dilation, groups, cudnn_fwd_algo };
        Conv1d::new(kernel.clone(), None, config).forward(x)
    };

    /// As [`Tensor::conv2d`], by the layer [`Conv2d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[1f32, 2., 3., 4.], &Device::Cpu)?.reshape((1, 1, 2, 2))?; // [batch, channels, height, width]
    /// let kernel = Tensor::new(&[1f32, 1., 1., 1.], &Device::Cpu)?.reshape((1, 1, 2, 2))?; // [out, in, height, width]
    /// let y = x.with_gradients().conv2d(&kernel, 0, 1, 1, 1)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [10.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shapes do not match, the kernel does not fit, or stride, dilation or groups are zero.
    conv2d |x, kernel: &Tensor, padding: usize, stride: usize, dilation: usize, groups: usize| {
        let x = Differentiable(x);
        x.conv2d_with_algo(kernel, padding, stride, dilation, groups, None)
    };

    /// As [`Tensor::conv2d_with_algo`], by the layer [`Conv2d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[1f32, 2., 3., 4.], &Device::Cpu)?.reshape((1, 1, 2, 2))?; // [batch, channels, height, width]
    /// let kernel = Tensor::new(&[1f32, 1., 1., 1.], &Device::Cpu)?.reshape((1, 1, 2, 2))?; // [out, in, height, width]
    /// let y = x.with_gradients().conv2d_with_algo(&kernel, 1, 2, 1, 1, None)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [1., 2., 3., 4.]); // each window covers one element and zeros
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shapes do not match, the kernel does not fit, or stride, dilation or groups are zero.
    conv2d_with_algo |
        x, kernel: &Tensor, padding: usize, stride: usize, dilation: usize, groups: usize,
        cudnn_fwd_algo: Option<CudnnFwdAlgo>
    | {
        let config = Conv2dConfig { padding, stride, dilation, groups, cudnn_fwd_algo };
        Conv2d::new(kernel.clone(), None, config).forward(x)
    };

    /// As [`Tensor::conv_transpose1d`], by the layer [`ConvTranspose1d`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[[[1f32, 2.]]], &Device::Cpu)?; // [batch, channels, length]
    /// let kernel = Tensor::new(&[[[1f32, 10.]]], &Device::Cpu)?; // [in, out, kernel]
    /// let y = x.with_gradients().conv_transpose1d(&kernel, 0, 0, 1, 1, 1)?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [1., 12., 20.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shapes do not match, stride or groups are zero, or the padding leaves nothing.
    conv_transpose1d |
        x, kernel: &Tensor, padding: usize, output_padding: usize, stride: usize, dilation: usize, groups: usize
    | {
        let config = ConvTranspose1dConfig { padding, output_padding, stride, dilation, groups };
        ConvTranspose1d::new(kernel.clone(), None, config).forward(x)
    };

    /// As [`Tensor::scatter`], by [`ops::scatter`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[[1f32, 2., 3.]], &Device::Cpu)?;
    /// let indexes = Tensor::new(&[[2u32, 0]], &Device::Cpu)?;
    /// let source = Tensor::new(&[[5f32, 6.]], &Device::Cpu)?;
    /// let y = x.with_gradients().scatter(&indexes, &source, 1)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[6., 2., 5.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::scatter`].
    scatter |x, indexes: &Tensor, source: &Tensor, dim: impl Dim| {
        ops::scatter(x, indexes, source, dim)
    };

    /// As [`Tensor::scatter_add`], by [`ops::scatter_add`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::new(&[[1f32, 2., 3.]], &Device::Cpu)?;
    /// let indexes = Tensor::new(&[[2u32, 0]], &Device::Cpu)?;
    /// let source = Tensor::new(&[[5f32, 6.]], &Device::Cpu)?;
    /// let y = x.with_gradients().scatter_add(&indexes, &source, 1)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[7., 2., 8.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::scatter_add`].
    scatter_add |x, indexes: &Tensor, source: &Tensor, dim: impl Dim| {
        ops::scatter_add(x, indexes, source, dim)
    };

    /// As [`Tensor::unfold`], by [`ops::unfold`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::WithGradients;
    ///
    /// let x = Tensor::arange(0f32, 4., &Device::Cpu)?;
    /// let y = x.with_gradients().unfold(0, 3, 1)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[0., 1., 2.], [1., 2., 3.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ops::unfold`].
    unfold |x, dim: impl Dim, size: usize, step: usize| ops::unfold(x, dim, size, step);
}
