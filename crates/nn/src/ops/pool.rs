//! Pooling of images with gradients that candle lacks, or has wrong.

use candle_core::{DType, Device, Result, Tensor, ToUsize2, bail};

use super::resample::{Line, record_map, resample};
use crate::conv::widened;
use crate::graph::{Backward, record};
use crate::kernel::in_range;

/// The largest element of each window of an image (batch, channels, height, width), as [`Tensor::max_pool2d_with_stride`], with any
/// stride and padding. The padding is never the largest. Of equal ones the first has the gradient, row by row, as in PyTorch.
///
/// The gradient of candle 0.11.1 is too small by the number of elements in a window, and there is none where window and stride differ.
///
/// It keeps its input and its output. The sums of f16 and bf16 are computed in f32.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::max_pool2d;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::randn(0f32, 1., (2, 3, 32, 32), &Device::Cpu)?;
/// assert_eq!(max_pool2d(&x, 2, 2, 0)?.dims(), [2, 3, 16, 16]); // window, stride, padding
/// assert_eq!(max_pool2d(&x, (3, 1), (2, 1), (1, 0))?.dims(), [2, 3, 16, 32]); // of height and width
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If x has other than four dimensions, window or stride are zero, the padding is more than half of the window, or the window does
/// not fit.
pub fn max_pool2d(
    x: &Tensor,
    kernel: impl ToUsize2,
    stride: impl ToUsize2,
    padding: impl ToUsize2,
) -> Result<Tensor> {
    let (kernel, stride) = (kernel.to_usize2(), stride.to_usize2());
    let windows = Window::both("max_pool2d", x, kernel, stride, padding.to_usize2())?;
    let y = pad(&x.detach(), windows)?.max_pool2d_with_stride(kernel, stride)?;
    record("max_pool2d", [x], y, move |given: Backward<1>| {
        let [x] = &given.inputs;
        let largest = largest(x, &given.output, windows)?;
        Ok([Some(input_gradient(&given.gradient, &largest, windows)?)])
    })
}

fn pad(x: &Tensor, [rows, columns]: [Window; 2]) -> Result<Tensor> {
    columns.pad(&rows.pad(x, 2, f64::NEG_INFINITY)?, 3, f64::NEG_INFINITY)
}

fn indices(ids: impl Iterator<Item = usize>, device: &Device) -> Result<Tensor> {
    let ids: Vec<_> = ids.map(|id| id as u32).collect();
    Tensor::new(ids, device)
}

/// 1 + the position, in the padded image, of the first of each window's elements that is the largest.
fn largest(x: &Tensor, y: &Tensor, windows: [Window; 2]) -> Result<Tensor> {
    let [rows, columns] = windows;
    let (device, x) = (x.device(), pad(x, windows)?.contiguous()?);
    let selections = |window: Window| {
        let of = |offset| (0..window.count()).map(move |at| at * window.stride + offset);
        let selections = (0..window.kernel).map(|offset| indices(of(offset), device));
        selections.collect::<Result<Vec<_>>>()
    };
    let (of_rows, of_columns) = (selections(rows)?, selections(columns)?);
    let mut found = Tensor::zeros(y.shape(), DType::U32, device)?;
    // The last one first, so that the first one remains.
    for (down, of_rows) in of_rows.iter().enumerate().rev() {
        let x = x.index_select(of_rows, 2)?;
        for (right, of_columns) in of_columns.iter().enumerate().rev() {
            let is_largest = x.index_select(of_columns, 3)?.eq(y)?;
            let offset = Tensor::new((down * columns.padded() + right) as u32, device)?;
            found = is_largest.where_cond(&offset.broadcast_as(y.shape())?, &found)?;
        }
    }
    let first = (0..rows.count()).map(|row| 1 + row * rows.stride * columns.padded());
    let across = (0..columns.count()).map(|column| column * columns.stride);
    let starts = indices(first, device)?.unsqueeze(1)?;
    let starts = starts.broadcast_add(&indices(across, device)?)?;
    found.broadcast_add(&starts)
}

/// The gradient of the input: each window's gradient belongs to its largest element. Each element reads the few windows that cover it, so
/// that no two windows write to one element.
fn input_gradient(dy: &Tensor, largest: &Tensor, windows: [Window; 2]) -> Result<Tensor> {
    let [rows, columns] = windows;
    let (device, dtype) = (dy.device(), dy.dtype());
    let (batch, channels, ..) = dy.dims4()?;
    let whole = (batch, channels, rows.size, columns.size);
    let first = |row| 1 + (row + rows.padding) * columns.padded() + columns.padding;
    let down = indices((0..rows.size).map(first), device)?.unsqueeze(1)?;
    let positions = down.broadcast_add(&indices(0..columns.size, device)?)?;
    let positions = positions.broadcast_as(whole)?;
    // One more window in each dimension, which has no largest element, stands for those that do not exist.
    let extended = |tensor: &Tensor| {
        let tensor = tensor.pad_with_zeros(2, 0, 1)?.pad_with_zeros(3, 0, 1)?;
        tensor.contiguous()
    };
    let (dy, largest) = (extended(&dy.to_dtype(widened(dtype))?)?, extended(largest)?);
    // The last window that begins at or before each element, and those before it.
    let covering = |window: Window| {
        let index = move |at: usize, before| {
            let last = (at + window.padding) / window.stride;
            let index = last.checked_sub(before);
            index.map_or(window.count(), |index| index.min(window.count()))
        };
        let before = 0..window.kernel.div_ceil(window.stride);
        let tables =
            before.map(|before| indices((0..window.size).map(|at| index(at, before)), device));
        tables.collect::<Result<Vec<_>>>()
    };
    let (of_rows, of_columns) = (covering(rows)?, covering(columns)?);
    let zero = Tensor::zeros(whole, dy.dtype(), device)?;
    let mut sum = zero.clone();
    for of_rows in &of_rows {
        let (dy, largest) = (
            dy.index_select(of_rows, 2)?,
            largest.index_select(of_rows, 2)?,
        );
        for of_columns in &of_columns {
            let is_largest = largest.index_select(of_columns, 3)?.eq(&positions)?;
            sum = (sum + is_largest.where_cond(&dy.index_select(of_columns, 3)?, &zero)?)?;
        }
    }
    sum.to_dtype(dtype)
}

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
        DType::F64 => resample(&detached, &maps, false)?,
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
    let y = resample(&x.detach(), &maps, false)?;
    record_map("adaptive_avg_pool2d", x, y, maps)
}

/// The windows of a pooling along one dimension.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Number of elements, without the padding.
    size: usize,
    kernel: usize,
    stride: usize,
    /// Elements before the first one, and after the last one.
    padding: usize,
}

impl Window {
    /// Those of height and width.
    fn both(
        name: &'static str,
        x: &Tensor,
        kernel: (usize, usize),
        stride: (usize, usize),
        padding: (usize, usize),
    ) -> Result<[Self; 2]> {
        in_range(name, [x])?;
        let (_, _, height, width) = x.dims4()?;
        let windows = [
            (height, kernel.0, stride.0, padding.0),
            (width, kernel.1, stride.1, padding.1),
        ];
        for (size, kernel, stride, padding) in windows {
            if kernel * stride == 0 || padding > kernel / 2 || kernel > size + 2 * padding {
                bail!(
                    "{name}: a window of {kernel} every {stride} with a padding of {padding} does not fit into {size}: window and \
                     stride must not be zero, the padding at most half of the window, and the window at most the padded size"
                )
            }
        }
        Ok(windows.map(|(size, kernel, stride, padding)| Self {
            size,
            kernel,
            stride,
            padding,
        }))
    }

    /// Number of windows.
    fn count(self) -> usize {
        (self.padded() - self.kernel) / self.stride + 1
    }

    fn padded(self) -> usize {
        self.size + 2 * self.padding
    }

    /// Pads dimension `dim` with a value.
    fn pad(self, x: &Tensor, dim: usize, value: f64) -> Result<Tensor> {
        if self.padding == 0 {
            return Ok(x.clone());
        }
        let mut dims = x.dims().to_vec();
        dims[dim] = self.padding;
        let side = Tensor::full(value, dims, x.device())?.to_dtype(x.dtype())?;
        Tensor::cat(&[&side, x, &side], dim)
    }
}
