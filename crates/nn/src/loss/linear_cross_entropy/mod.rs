//! Cross-entropy of a linear layer's output that never holds all logits.
//!
//! Logits exist for some rows at a time. Where gradients are asked for, the forward pass computes them from these rows too, and the
//! backward pass scales them. Tokens that do not count add nothing to the loss or a gradient, whatever their hidden states are.

mod classes;
mod pass;
mod rows;
mod tokens;

use candle_core::{Result, Tensor};

pub use classes::Classes;
use pass::Pass;
#[cfg(feature = "cuda")]
pub(crate) use tokens::Arguments;
pub use tokens::LinearCrossEntropy;

/// The mean cross-entropy of the logits hidden · weightᵀ and of targets, without the logits.
///
/// `hidden` is (…, width) and `weight` (classes, width), for example that of the last [`Linear`](crate::Linear) or of the
/// embedding, with any strides, or a
/// [`FrozenWeight`](crate::quantized::FrozenWeight) in few bits. `targets` (…) are u8, u32 or i64. A token counts unless its target is the
/// [`ignore_index`](LinearCrossEntropy::ignore_index) or the largest value of its type, for example `u32::MAX`. The mean is over
/// the tokens that count, as in PyTorch, and 0 if there are none. For f16 and bf16 the loss is f32, as are logits and sums.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy};
///
/// # fn main() -> candle_core::Result<()> {
/// let hidden = Tensor::randn(0f32, 1., (2, 16, 64), &Device::Cpu)?; // [samples, time, width]
/// let weight = Var::randn(0f32, 0.1, (1000, 64), &Device::Cpu)?; // [classes, width]
/// let targets = Tensor::zeros((2, 16), DType::U32, &Device::Cpu)?; // [samples, time]
/// let options = LinearCrossEntropy::default().ignore_index(3).z_loss(1e-4);
/// let loss = linear_cross_entropy(&hidden, &weight, &targets, &options)?;
/// let gradients = loss.backward()?;
/// assert_eq!(gradients.get(&weight).unwrap().dims(), [1000, 64]);
/// # Ok(())
/// # }
/// ```
///
/// Where a gradient is asked for, it is computed in the forward pass, some rows of logits at a time, and only scaled in the
/// backward pass (after Liger Kernel: Hsu et al. 2024, arXiv 2410.10989). The peak above the inputs is a chunk of logits and the
/// gradients of hidden states, weight and bias, in f32 for f16 and bf16; then candle's sums of the gradients. Nothing is computed
/// or kept for an input that leads to no Var.
///
/// It keeps these gradients until the backward pass, which takes them, and the targets as i64. A second backward pass on the same
/// graph computes the gradients again. For evaluation, pass detached tensors: otherwise gradients are computed that nobody uses.
///
/// The result depends on the size of a chunk within rounding only. By default that size follows from the shapes and, within a
/// trainer, from the room that its memory has left, but is at least 64 rows; [`chunk_rows`](LinearCrossEntropy::chunk_rows) fixes it,
/// for fewer rows or for the same bits whatever the room.
///
/// Outside of [`recompute`](crate::recompute) regions it does its work once. Within a region the first run computes gradients too,
/// and drops them.
///
/// # Errors
/// If shapes, types, devices or options do not fit, or if a target or weight on the CPU is out of range; the message names it. On
/// CUDA nothing waits for the device: a target out of range or a negative weight gives NaN, also as the gradient of its hidden
/// state. Targets and weights may stay on the CPU; then they are checked there.
pub fn linear_cross_entropy<'a>(
    hidden: &Tensor,
    weight: impl Into<Classes<'a>>,
    targets: &Tensor,
    options: &LinearCrossEntropy,
) -> Result<Tensor> {
    let weight = weight.into();
    let pass = Pass::new(hidden, weight, targets, options)?;
    let averages = true;
    pass.loss(hidden, weight, options.bias.as_ref(), averages)
}

/// The sum that [`linear_cross_entropy`] divides, and the number of tokens that count, or the sum of their weights.
///
/// The closure of a trainer of candle-headroom returns it as it is: then micro-batches with different numbers of tokens give the
/// gradient of the whole batch.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy_sum};
///
/// # fn main() -> candle_core::Result<()> {
/// let hidden = Tensor::randn(0f32, 1., (2, 2, 8), &Device::Cpu)?; // [samples, tokens, width]
/// let weight = Tensor::zeros((10, 8), DType::F32, &Device::Cpu)?; // [classes, width]
/// let targets = Tensor::new(&[[2i64, -100], [4, 5]], &Device::Cpu)?; // [samples, tokens]
/// let options = LinearCrossEntropy::default().ignore_index(-100);
/// let sum = linear_cross_entropy_sum(&hidden, &weight, &targets, &options)?;
/// assert_eq!(sum.weight, 3.);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`linear_cross_entropy`]. On CUDA it waits for the device to read the weight, unless targets and token weights are on the
/// CPU.
pub fn linear_cross_entropy_sum<'a>(
    hidden: &Tensor,
    weight: impl Into<Classes<'a>>,
    targets: &Tensor,
    options: &LinearCrossEntropy,
) -> Result<LossSum> {
    let weight = weight.into();
    let pass = Pass::new(hidden, weight, targets, options)?;
    let (total, averages) = (pass.total()?, false);
    Ok(LossSum {
        value: pass.loss(hidden, weight, options.bias.as_ref(), averages)?,
        weight: total,
    })
}

/// A sum of losses and its weight, from [`linear_cross_entropy_sum`]; a `Loss` of candle-headroom by `into()`.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::loss::linear_cross_entropy_sum;
///
/// let hidden = Tensor::zeros((2, 8), DType::F32, &Device::Cpu)?; // [tokens, width]
/// let weight = Tensor::zeros((4, 8), DType::F32, &Device::Cpu)?; // [classes, width]: all logits are 0
/// let targets = Tensor::new(&[1u32, 2], &Device::Cpu)?;
/// let sum = linear_cross_entropy_sum(&hidden, &weight, &targets, &Default::default())?;
/// assert_eq!(sum.weight, 2.);
/// let mean = (sum.value / sum.weight)?.to_scalar::<f32>()?;
/// assert!((mean - 4f32.ln()).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LossSum {
    /// The sum, a scalar.
    pub value: Tensor,
    /// The number of tokens that count, or the sum of their weights.
    pub weight: f64,
}
