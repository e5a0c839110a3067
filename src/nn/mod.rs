//! Layers and operations of `candle_nn` with a backward pass that keeps little memory.

pub mod activation;
mod bias;
#[cfg(test)]
mod composed;
mod graph;
mod kernel;
pub mod linear;
pub mod loss;
pub mod ops;
mod prelu;
pub mod quantized;
mod seed;

pub use candle_nn::*;

pub use activation::{Activation, PReLU, prelu};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use ops::Dropout;
pub use seed::seeded;
