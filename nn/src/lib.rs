//! `candle_nn` with backward passes: [`candle_headroom::nn`] at the root of a crate of its own, to take the place of the
//! dependency `candle-nn` in another crate's Cargo.toml. The optimizers are candle's, with all their methods.

#![deny(missing_docs)]

pub use candle_headroom::nn::*;
pub use candle_nn::{AdamW, SGD};
