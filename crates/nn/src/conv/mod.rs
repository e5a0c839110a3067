//! Convolutions as in [`candle_nn::conv`], with gradients that are right on every device.
//!
//! candle 0.11.1 computes wrong ones for `conv1d`: of the weight, because it multiplies by the strided kernel instead of its contiguous
//! copy, and on the CPU of the input in batches without padding. `conv_transpose1d` has no backward pass, and on the CPU its output is
//! wrong in batches without padding. The backward pass of `conv2d` fails if the last stride leaves over more of the height than of the
//! width, or less, and where the padding is wide. The layers here are right in all of these cases, and so are the methods of
//! [`WithGradients`](super::WithGradients); those of [`Tensor`](candle_core::Tensor) remain candle's. [`ConvTranspose2d`] is right in candle,
//! but for its sums in f16 and bf16.

mod layer;
mod line;
mod plane;

pub use candle_nn::conv::*;

pub(crate) use layer::widened;
pub use line::{
    Conv1d, ConvTranspose1d, conv_transpose1d, conv_transpose1d_no_bias, conv1d, conv1d_no_bias,
};
pub use plane::{
    Conv2d, ConvTranspose2d, conv_transpose2d, conv_transpose2d_no_bias, conv2d, conv2d_no_bias,
};
