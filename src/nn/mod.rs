//! Layers and operations of `candle_nn` with a backward pass that keeps little memory.

mod graph;
mod kernel;
pub mod ops;

pub use candle_nn::*;
