//! Operations of [`candle_nn::ops`], with backward passes.

pub(super) mod softmax;

pub use candle_nn::ops::*;

pub use softmax::softmax_last_dim;
