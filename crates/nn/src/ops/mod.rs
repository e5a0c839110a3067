//! Operations of [`candle_nn::ops`], and of candle's tensors, with right gradients.

pub(super) mod curves;
pub(super) mod dropout;
pub(super) mod elementwise;
mod images;
mod scatter;
pub(super) mod softmax;
pub(super) mod swiglu;

use candle_core::{Result, Tensor};

pub use candle_nn::ops::*;

pub use self::{layer_norm as layer_norm_slow, rms_norm as rms_norm_slow};
pub use dropout::{Dropout, dropout, dropout_with_seed};
pub use elementwise::{add, hard_sigmoid, leaky_relu, mish, selu, sigmoid, silu, silu_mul};
pub use images::{
    adaptive_avg_pool2d, avg_pool2d, max_pool2d, upsample_bilinear2d, upsample_nearest1d,
    upsample_nearest2d,
};
pub use scatter::{scatter, scatter_add, unfold};
pub use softmax::{log_softmax, softmax, softmax_last_dim};
pub use swiglu::swiglu;

use super::attention::{Attention, attention};
use super::norm::rows::normalize;

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
