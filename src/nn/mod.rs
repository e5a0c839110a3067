//! Layers and operations of `candle_nn` with a backward pass that keeps little memory.

pub mod activation;
pub mod attention;
mod audit;
pub mod batch_norm;
mod bias;
#[cfg(test)]
mod composed;
pub mod conv;
mod graph;
pub mod group_norm;
mod kernel;
pub mod kv_cache;
pub mod layer_norm;
pub mod linear;
pub mod loss;
mod norm;
pub mod ops;
mod prelu;
pub mod quantized;
pub mod rotary_emb;
mod seed;

pub use candle_nn::*;

pub use activation::{Activation, PReLU, prelu};
pub use attention::{Attention, attention};
pub use audit::{Audit, Audited, Received, audit};
pub(crate) use audit::{Patterns, is_statistic};
pub use batch_norm::{BatchNorm, batch_norm};
pub use conv::{
    Conv1d, Conv2d, ConvTranspose1d, conv_transpose1d, conv_transpose1d_no_bias, conv1d,
    conv1d_no_bias, conv2d, conv2d_no_bias,
};
pub use group_norm::{GroupNorm, group_norm};
pub use layer_norm::{LayerNorm, RmsNorm, layer_norm, layer_norm_no_bias, rms_norm};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use ops::Dropout;
pub use seed::seeded;
