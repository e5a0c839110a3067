//! Operations of [`candle_nn::ops`], with backward passes.

mod sdpa;
pub(super) mod softmax;

pub use candle_nn::ops::*;

pub use sdpa::sdpa;
pub use softmax::softmax_last_dim;
