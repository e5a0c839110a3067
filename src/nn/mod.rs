//! Layers and operations of `candle_nn` with a backward pass that keeps little memory.

pub mod attention;
mod graph;
mod kernel;
pub mod ops;

pub use candle_nn::*;

pub use attention::{Attention, attention};
