//! Convolutions over one dimension, as [`candle_nn::conv`], with gradients that are right on every device.
//!
//! candle 0.11.1 computes wrong ones for `conv1d` on the CPU: of the weight always, because it multiplies by the strided kernel instead
//! of its contiguous copy, and of the input in batches without padding. `conv_transpose1d` has no backward pass there, and its output
//! is wrong in batches without padding. Convolutions over two dimensions are candle's.

mod bias;
mod single;
mod sliding;
mod transposed;

pub use candle_nn::conv::*;

pub use single::{Conv1d, conv1d, conv1d_no_bias};
pub use transposed::{ConvTranspose1d, conv_transpose1d, conv_transpose1d_no_bias};
