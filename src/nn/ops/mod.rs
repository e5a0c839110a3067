//! Operations of [`candle_nn::ops`], with backward passes.

mod activations;
pub(super) mod curves;
pub(super) mod dropout;
pub(super) mod elementwise;
mod norm;
mod pairs;
mod sdpa;
pub(super) mod softmax;
pub(super) mod softmax_dim;
pub(super) mod swiglu;

pub use candle_nn::ops::*;

pub use activations::{hard_sigmoid, leaky_relu, mish, selu, sigmoid, silu};
pub use dropout::{Dropout, dropout, dropout_with_seed};
pub use norm::{layer_norm, layer_norm_slow, rms_norm, rms_norm_slow};
pub use pairs::{add, silu_mul};
pub use sdpa::sdpa;
pub use softmax::softmax_last_dim;
pub use softmax_dim::{log_softmax, softmax};
pub use swiglu::swiglu;
