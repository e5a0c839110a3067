//! candle_nn, with each operation that has no backward pass replaced by a composition of candle's own differentiable operations.
//!
//! Slow and generous with memory on purpose: it is what a user can write in an afternoon, and the reference that the gradients of
//! `candle_headroom::nn` are compared with.

pub use candle_nn::*;

pub mod attention;
pub mod kv_cache;
pub mod layer_norm;
pub mod ops;
pub mod rotary_emb;

// These hide the re-exported ones.
pub use layer_norm::{LayerNorm, LayerNormConfig, RmsNorm, layer_norm, layer_norm_no_bias, rms_norm};
