//! Operations of [`candle_nn::ops`], with backward passes.

mod norm;
pub(super) mod softmax;

pub use candle_nn::ops::*;

pub use norm::{layer_norm, layer_norm_slow, rms_norm, rms_norm_slow};
pub use softmax::softmax_last_dim;
