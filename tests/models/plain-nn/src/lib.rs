//! candle_nn, with each operation that has no backward pass, or a wrong one, replaced by a composition of candle's own differentiable
//! operations.
//!
//! Slow and generous with memory on purpose: it is what a user can write in an afternoon, and the reference that the gradients of
//! `candle_headroom::nn` are compared with.

pub use candle_nn::*;

pub mod attention;
pub mod conv;
pub mod kv_cache;
pub mod layer_norm;
pub mod linear;
pub mod ops;
pub mod rotary_emb;
mod with_gradients;

// These hide the re-exported ones.
pub use conv::{
    Conv1d, ConvTranspose1d, conv_transpose1d, conv_transpose1d_no_bias, conv1d, conv1d_no_bias,
};
pub use layer_norm::{
    LayerNorm, LayerNormConfig, RmsNorm, layer_norm, layer_norm_no_bias, rms_norm,
};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use with_gradients::{Differentiable, WithGradients};
