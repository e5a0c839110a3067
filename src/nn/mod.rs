//! Layers and operations of `candle_nn` with a backward pass that keeps little memory.

mod audit;
mod graph;
mod kernel;
pub mod kv_cache;
pub mod ops;

pub use candle_nn::*;

pub use audit::{Audit, Audited, Received, audit};
pub(crate) use audit::{Patterns, is_statistic};
