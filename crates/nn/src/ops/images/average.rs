use candle_core::{DType, Result, Tensor, ToUsize2, bail};

use super::line::{Line, map, record_map};
use super::window::Window;
use crate::conv::widened;

/// The mean of each window of an image (batch, channels, height, width), as [`Tensor::avg_pool2d_with_stride`], with any stride and
/// padding. Zeros of the padding count, as in PyTorch by default.
///
/// candle 0.11.1 has no backward pass where window and stride differ, and a wrong one where the windows leave a rest.
///
/// It keeps nothing. The sums of f16 and bf16 are computed in f32.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::avg_pool2d;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::randn(0f32, 1., (2, 3, 32, 32), &Device::Cpu)?;
/// assert_eq!(avg_pool2d(&x, 3, 2, 1)?.dims(), [2, 3, 16, 16]); // window, stride, padding
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If x has other than four dimensions, window or stride are zero, the padding is more than half of the window, or the window does
/// not fit.
pub fn avg_pool2d(
    x: &Tensor,
    kernel: impl ToUsize2,
    stride: impl ToUsize2,
    padding: impl ToUsize2,
) -> Result<Tensor> {
    let (kernel, stride) = (kernel.to_usize2(), stride.to_usize2());
    let windows = Window::both("avg_pool2d", x, kernel, stride, padding.to_usize2())?;
    let maps = windows.map(|window| {
        Line::new(window.size, window.count(), |at| {
            let places = at * window.stride..at * window.stride + window.kernel;
            let inside = places.filter_map(move |place| place.checked_sub(window.padding));
            let inside = inside.filter(move |&place| place < window.size);
            inside.map(move |place| (place, 1. / window.kernel as f64))
        })
    });
    let detached = x.detach();
    let y = match x.dtype() {
        // candle divides by a number of f32 on CUDA.
        DType::F64 => map(&detached, &maps)?,
        dtype => {
            let [rows, columns] = windows;
            let padded = columns.pad(&rows.pad(&detached, 2, 0.)?, 3, 0.)?;
            let padded = padded.to_dtype(widened(dtype))?;
            let means = padded.avg_pool2d_with_stride(kernel, stride)?;
            means.to_dtype(dtype)?
        }
    };
    record_map("avg_pool2d", x, y, maps)
}

/// Means of windows of an image (batch, channels, height, width) that give this height and width, as PyTorch's
/// `AdaptiveAvgPool2d`: window i of n covers the elements from ⌊i · size / n⌋ to ⌈(i + 1) · size / n⌉.
///
/// It keeps nothing. The sums of f16 and bf16 are computed in f32.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::adaptive_avg_pool2d;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::randn(0f32, 1., (2, 3, 7, 9), &Device::Cpu)?;
/// assert_eq!(adaptive_avg_pool2d(&x, (4, 5))?.dims(), [2, 3, 4, 5]);
/// assert_eq!(adaptive_avg_pool2d(&x, 1)?.dims(), [2, 3, 1, 1]); // the mean of each channel
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If x has other than four dimensions, or a size is zero.
pub fn adaptive_avg_pool2d(x: &Tensor, size: impl ToUsize2) -> Result<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    let (high, broad) = size.to_usize2();
    if height * width * high * broad == 0 {
        bail!(
            "adaptive_avg_pool2d: {:?} to {high} x {broad}: no size may be zero",
            x.shape()
        )
    }
    let maps = [(height, high), (width, broad)].map(|(from, to)| {
        Line::new(from, to, |at| {
            let places = at * from / to..((at + 1) * from).div_ceil(to);
            let weight = 1. / places.len() as f64;
            places.map(move |place| (place, weight))
        })
    });
    let y = map(&x.detach(), &maps)?;
    record_map("adaptive_avg_pool2d", x, y, maps)
}
