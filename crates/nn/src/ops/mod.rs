//! Operations of [`candle_nn::ops`], and of candle's tensors, with right gradients.

mod activations;
pub(super) mod curves;
pub(super) mod dropout;
pub(super) mod elementwise;
mod images;
mod norm;
mod pairs;
mod scatter;
mod sdpa;
pub(super) mod softmax;
pub(super) mod swiglu;

pub use candle_nn::ops::*;

pub use activations::{hard_sigmoid, leaky_relu, mish, selu, sigmoid, silu};
pub use dropout::{Dropout, dropout, dropout_with_seed};
pub use images::{
    adaptive_avg_pool2d, avg_pool2d, max_pool2d, upsample_bilinear2d, upsample_nearest1d,
    upsample_nearest2d,
};
pub use norm::{layer_norm, layer_norm as layer_norm_slow, rms_norm, rms_norm as rms_norm_slow};
pub use pairs::{add, silu_mul};
pub use scatter::{scatter, scatter_add, unfold};
pub use sdpa::sdpa;
pub use softmax::{log_softmax, softmax, softmax_last_dim};
pub use swiglu::swiglu;
