//! Operations that move elements by index.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor, bail};

use crate::graph::record_lean;

/// x with elements of `source` added at `indexes` along a dimension, as [`Tensor::scatter_add`]. `indexes` and `source` have one shape,
/// that of x but for this dimension. Any strides.
///
/// In candle 0.11.1 the gradient of x is zero where something is added, and the backward pass fails unless `source` has the shape of x.
///
/// It keeps the indices.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::scatter_add;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu)?;
/// let indexes = Tensor::new(&[[0u32, 0], [2, 1]], &Device::Cpu)?;
/// let source = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// let sum = scatter_add(&x, &indexes, &source, 1)?;
/// assert_eq!(sum.to_vec2::<f32>()?, [[3., 0., 0.], [0., 4., 3.]]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// candle's, if shapes, types or devices do not match or an index is out of range.
pub fn scatter_add(x: &Tensor, indexes: &Tensor, source: &Tensor, dim: impl Dim) -> Result<Tensor> {
    let dim = dim.to_index(x.shape(), "scatter-add")?;
    let indexes = indexes.contiguous()?;
    let y = x
        .detach()
        .scatter_add(&indexes, &source.detach().contiguous()?, dim)?;
    record_lean(
        "scatter_add",
        [x, source],
        y,
        move |dy, [of_x, of_source]| {
            let dsource = of_source.then(|| dy.contiguous()?.gather(&indexes, dim));
            Ok([of_x.then(|| dy.clone()), dsource.transpose()?])
        },
    )
}

/// x with the elements at `indexes` along a dimension replaced by those of `source`, as [`Tensor::scatter`]; shapes as for
/// [`scatter_add`]. Where an index occurs more than once, the gradient of `source` is not defined, as in PyTorch.
///
/// In candle 0.11.1 the gradient of x is also that of the elements that were replaced.
///
/// It keeps the indices.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::scatter;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[1f32, 2., 3.]], &Device::Cpu)?;
/// let indexes = Tensor::new(&[[2u32, 0]], &Device::Cpu)?;
/// let source = Tensor::new(&[[5f32, 6.]], &Device::Cpu)?;
/// assert_eq!(scatter(&x, &indexes, &source, 1)?.to_vec2::<f32>()?, [[6., 2., 5.]]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`scatter_add`].
pub fn scatter(x: &Tensor, indexes: &Tensor, source: &Tensor, dim: impl Dim) -> Result<Tensor> {
    let dim = dim.to_index(x.shape(), "scatter")?;
    let indexes = indexes.contiguous()?;
    let y = x
        .detach()
        .scatter(&indexes, &source.detach().contiguous()?, dim)?;
    record_lean("scatter", [x, source], y, move |dy, [of_x, of_source]| {
        let dy = dy.contiguous()?;
        let dx = of_x.then(|| {
            let none = Tensor::zeros(indexes.shape(), dy.dtype(), dy.device())?;
            dy.scatter(&indexes, &none, dim)
        });
        let dsource = of_source.then(|| dy.gather(&indexes, dim));
        Ok([dx.transpose()?, dsource.transpose()?])
    })
}

/// All runs of `size` elements along a dimension, `step` apart, as [`Tensor::unfold`]: the dimension becomes their number, and a last
/// dimension of `size` is added. It is a copy, not a view.
///
/// In candle 0.11.1 the gradient is mixed up unless the dimension is the last one, and the backward pass fails where runs overlap.
///
/// It keeps nothing.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::unfold;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::arange(0f32, 5., &Device::Cpu)?;
/// let runs = unfold(&x, 0, 3, 1)?;
/// assert_eq!(runs.to_vec2::<f32>()?, [[0., 1., 2.], [1., 2., 3.], [2., 3., 4.]]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the dimension is out of range, `size` or `step` is zero, or `size` is more than the dimension.
pub fn unfold(x: &Tensor, dim: impl Dim, size: usize, step: usize) -> Result<Tensor> {
    let dim = dim.to_index(x.shape(), "unfold")?;
    let length = x.dim(dim)?;
    if size * step == 0 || size > length {
        bail!(
            "unfold: runs of {size} every {step} do not fit into {length}, and neither may be zero"
        )
    }
    let count = (length - size) / step + 1;
    let positions = (0..count).flat_map(|run| (0..size).map(move |at| (run * step + at) as u32));
    let positions = Tensor::new(positions.collect::<Vec<_>>(), x.device())?;
    let runs = x.contiguous()?.index_select(&positions, dim)?;
    let mut dims = runs.dims().to_vec();
    dims.splice(dim..=dim, [count, size]);
    let mut order: Vec<_> = (0..dims.len()).filter(|&at| at != dim + 1).collect();
    order.push(dim + 1);
    runs.reshape(dims)?.permute(order)
}
