//! `candle_nn` with backward passes that keep little memory.
//!
//! Some operations of candle_nn 0.11 have no backward pass, and `backward()` does not say so: what lies before them never learns.
//! Others keep several times their output. This package has candle_nn's names, types and signatures, so one line makes a model file
//! trainable, or a whole crate: `candle-nn = { package = "candle-headroom-nn", version = "0.1" }` in its Cargo.toml.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_headroom_nn as candle_nn; // the one line
//! use candle_nn::{Module, VarBuilder, VarMap, linear, rms_norm};
//!
//! # fn main() -> candle_core::Result<()> {
//! let varmap = VarMap::new();
//! let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
//! let (hidden, norm) = (linear(16, 32, vb.pp("hidden"))?, rms_norm(32, 1e-5, vb.pp("norm"))?);
//! let x = Tensor::randn(0f32, 1., (8, 16), &Device::Cpu)?; // [samples, features]
//! let gradients = norm.forward(&hidden.forward(&x)?)?.sum_all()?.backward()?;
//! assert!(gradients.get(hidden.weight()).is_some());
//! # Ok(())
//! # }
//! ```
//!
//! - Replaced, because candle's have no backward pass: [`ops`]`::{softmax_last_dim, rms_norm, layer_norm, sdpa}`, [`RmsNorm`],
//!   [`LayerNorm`], [`rotary_emb`], [`attention`](mod@attention)`::flash_attn`, [`kv_cache`], [`quantized::QMatMul`].
//! - Replaced, because candle's keep more than they need, or are wrong: [`Linear`], [`Activation`], [`Dropout`], [`Embedding`],
//!   [`GroupNorm`], [`BatchNorm`], [`Conv1d`], [`Conv2d`], [`loss`], [`ops`]`::{softmax, log_softmax, silu, swiglu, …}`.
//! - Replaced, because candle's sum f16 and bf16 in these types: [`LSTM`], [`GRU`], [`ConvTranspose2d`], which compute in f32.
//! - In the place of methods of candle's tensors whose gradients are missing or wrong ([`WithGradients`]): [`ops`]`::{max_pool2d,
//!   avg_pool2d, upsample_nearest2d, upsample_bilinear2d, scatter_add, unfold, …}`.
//! - New: [`attention()`], exact and without a matrix of scores; [`loss::linear_cross_entropy`], without logits; [`audit()`], which
//!   says what receives a gradient, and whether it is right; [`recompute()`], which keeps no activations, with
//!   [`recompute_tiled`] for long contexts and [`Offload`] of inputs to the host; [`seeded`] randomness; [`lora`], adapters beside the
//!   linear layers of any model.
//! - Everything else is candle_nn's, re-exported: `VarMap`, `VarBuilder`, `Sequential`, `AdamW`, …
//!
//! Candle's [`Linear`], [`LayerNorm`], [`RmsNorm`], [`Embedding`], [`Activation`], [`PReLU`], [`QMatMul`](quantized::QMatMul) and
//! convolutions become these by `into()`.
//!
//! No function depends on how a batch is cut: it computes the same for a sample alone as in a batch, in value, type and gradient, within
//! the rounding of its sums. Two depend on the batch by their definition: [`BatchNorm`] in training, and the masks of [`Dropout`]. Sums of
//! f16 and bf16 are in f32, and so are losses; products of matrices on the CPU are candle's, whose sums of these types are not.
//!
//! Each item says what it keeps for the backward pass; the documentation of candle-headroom has a table of bytes and the models that were
//! tried. Operations run on f64, f32, f16 and bf16, on the CPU and on CUDA (feature `cuda`). There are no kernels for Metal: activations,
//! dropout, softmax, the norms and [`loss::cross_entropy`] are compositions of candle's operations there, which have gradients and keep
//! several times as much.

#![deny(missing_docs, unsafe_code, clippy::undocumented_unsafe_blocks)]
// It neither prints nor ends the process, and what cannot be is an error: promise 10.
#![deny(
    clippy::dbg_macro,
    clippy::exit,
    clippy::print_stderr,
    clippy::print_stdout
)]
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]
#![warn(missing_debug_implementations)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod activation;
pub mod attention;
mod audit;
pub mod batch_norm;
mod bias;
mod bounds;
pub mod conv;
pub mod cpu_flash_attention;
pub mod embedding;
mod graph;
pub mod group_norm;
mod kernel;
pub mod kv_cache;
pub mod layer_norm;
pub mod linear;
pub mod lora;
pub mod loss;
#[doc(hidden)]
pub mod modules;
mod norm;
pub mod ops;
pub mod quantized;
mod recompute;
pub mod rnn;
pub mod rotary_emb;
mod rows;
pub mod scope;
mod seed;
/// [`candle_nn::varlen_attention`] with a backward pass.
pub mod varlen_attention {
    pub use crate::attention::varlen::*;
}
mod with_gradients;

pub use candle_nn::*;

pub use activation::{Activation, PReLU, prelu};
pub use attention::{Attention, attention};
pub use audit::{Audit, AuditBuilder, AuditError, Audited, Received, Slope, audit};
pub use batch_norm::{BatchNorm, batch_norm};
pub use conv::{
    Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d, conv_transpose1d, conv_transpose1d_no_bias,
    conv_transpose2d, conv_transpose2d_no_bias, conv1d, conv1d_no_bias, conv2d, conv2d_no_bias,
};
pub use embedding::{Embedding, embedding};
pub use graph::backward;
pub use group_norm::{GroupNorm, group_norm};
#[doc(hidden)]
pub use kernel::IndexRangeError;
pub use layer_norm::{LayerNorm, RmsNorm, layer_norm, layer_norm_no_bias, rms_norm};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use ops::Dropout;
pub use recompute::{
    Offload, OffloadStats, RecomputeError, RegionInputs, RegionOutputs, SecondRun, is_recomputing,
    recompute, recompute_tiled,
};
pub use rnn::{GRU, LSTM, gru, lstm};
pub use seed::seeded;
pub use with_gradients::{Differentiable, WithGradients};
