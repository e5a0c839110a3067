//! Operations of [`candle_nn::ops`], and of candle's tensors, with right gradients.
//!
//! Most are one node of the graph, which keeps no intermediate results; each says what it keeps. Inputs may have any strides. Sums of
//! f16 and bf16 are computed in f32 and rounded once. A sample's value and gradient do not depend on the other samples of a batch, but
//! for the masks of [`dropout()`], which are drawn by position. Functions without a word about a backward pass are candle's.

pub(super) mod curves;
pub(super) mod dropout;
pub(super) mod elementwise;
mod pool;
mod resample;
pub(super) mod softmax;

use candle_core::shape::Dim;
use candle_core::{Result, Tensor, bail};

pub use candle_nn::ops::*;

pub use self::{layer_norm as layer_norm_slow, rms_norm as rms_norm_slow};
pub use dropout::{Dropout, dropout, dropout_with_seed};
pub use elementwise::{add, hard_sigmoid, leaky_relu, mish, selu, sigmoid, silu, silu_mul, swiglu};
pub use pool::{adaptive_avg_pool2d, avg_pool2d, max_pool2d};
pub use resample::{upsample_bilinear2d, upsample_nearest1d, upsample_nearest2d};
pub use softmax::{log_softmax, softmax, softmax_last_dim};

use super::attention::{Attention, attention};
use super::graph::record_lean;
use super::kernel::{count_in_range, in_range};
use super::layer_norm::normalize;

/// `alpha` · x / √(mean(x²) + `eps`) over the last dimension, as [`candle_nn::ops::rms_norm`], with a backward pass. `xs` may have any
/// strides; `alpha` has as many elements as the last dimension.
///
/// All arithmetic is in f32, f64 for f64. `rms_norm_slow` is the same function.
///
/// It keeps its output.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::ops::rms_norm;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[3f32, 4.], [-6., 8.]], &Device::Cpu)?;
/// let alpha = Tensor::ones(2, DType::F32, &Device::Cpu)?;
/// let squares = rms_norm(&x, &alpha, 1e-6)?.sqr()?.mean(1)?.to_vec1::<f32>()?;
/// assert!(squares.iter().all(|mean| (mean - 1.).abs() < 1e-5));
/// # Ok(())
/// # }
/// ```
///
/// After Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019, arXiv 1910.07467).
///
/// # Errors
/// If the shapes do not match, or `alpha` has another type than `xs`, or they are not f64, f32, f16 or bf16.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    normalize(eps.into(), false, xs, alpha, None)
}

/// (x − mean(x)) / √(variance(x) + `eps`) · `alpha` + `beta` over the last dimension, as [`candle_nn::ops::layer_norm`], with a
/// backward pass. `xs` may have any strides; `alpha` and `beta` have as many elements as the last dimension.
///
/// All arithmetic is in f32, f64 for f64, and the variance is summed around the mean. candle's operation computes mean(x²) − mean(x)²,
/// which loses digits as the mean grows and gives NaN from a mean of about 10⁴ deviations on. `layer_norm_slow` is the same function as
/// this one.
///
/// It keeps its output.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::layer_norm;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[1f32, 2., 3., 6.]], &Device::Cpu)?;
/// let (alpha, beta) = (x.ones_like()?.squeeze(0)?, x.zeros_like()?.squeeze(0)?);
/// let y = layer_norm(&x, &alpha, &beta, 1e-6)?;
/// assert!(y.mean_all()?.to_scalar::<f32>()?.abs() < 1e-5);
/// assert!((y.sqr()?.mean_all()?.to_scalar::<f32>()? - 1.).abs() < 1e-5);
/// # Ok(())
/// # }
/// ```
///
/// After Ba, Kiros and Hinton, "Layer Normalization" (2016, arXiv 1607.06450).
///
/// # Errors
/// If the shapes do not match, or a parameter has another type than `xs`, or they are not f64, f32, f16 or bf16.
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    normalize(eps.into(), true, xs, alpha, Some(beta))
}

/// Scaled dot product attention, as [`candle_nn::ops::sdpa`], with a backward pass, on any device.
///
/// - `q`: (batch, heads, queries, width)
/// - `k`: (batch, key heads, keys, width)
/// - `v`: (batch, key heads, keys, value width)
/// - `mask`: added to the scores; its shape can be broadcast to (batch, heads, queries, keys)
/// - `do_causal`: the last query sees the last key, each query one key less than the next
/// - `softcapping`: scores are kept between −`softcapping` and `softcapping`; 1 turns it off
///
/// The result is not contiguous: as that of [`attention`], it is a transposed view of (batch, queries, heads, value width).
///
/// It keeps what [`attention`] keeps.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::sdpa;
///
/// # fn main() -> candle_core::Result<()> {
/// let q = Tensor::randn(0f32, 1., (2, 8, 10, 16), &Device::Cpu)?;
/// let (k, v) = (q.narrow(1, 0, 4)?, q.narrow(1, 4, 4)?); // 4 key heads
/// let y = sdpa(&q, &k, &v, None, true, 0.25, 1.)?; // 1/√16
/// assert_eq!(y.dims(), [2, 8, 10, 16]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`attention`].
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    let mut options = Attention::default().scale(f64::from(scale));
    if do_causal {
        options = options.causal();
    }
    if let Some(mask) = mask {
        options = options.mask(mask);
    }
    if softcapping != 1. {
        options = options.softcap(f64::from(softcapping));
    }
    attention(q, k, v, &options)
}

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
    in_range("scatter-add", [x, indexes])?;
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
    in_range("scatter", [x, indexes])?;
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
    let elements = x.elem_count() / length * (count * size).max(length);
    count_in_range("unfold", x.device(), elements)?;
    let positions = (0..count).flat_map(|run| (0..size).map(move |at| (run * step + at) as u32));
    let positions = Tensor::new(positions.collect::<Vec<_>>(), x.device())?;
    let runs = x.contiguous()?.index_select(&positions, dim)?;
    let mut dims = runs.dims().to_vec();
    dims.splice(dim..=dim, [count, size]);
    let mut order: Vec<_> = (0..dims.len()).filter(|&at| at != dim + 1).collect();
    order.push(dim + 1);
    runs.reshape(dims)?.permute(order)
}
