//! Predicts what a micro-batch takes from what others have taken.

mod learn;
mod level;
mod memory_model;

pub(in crate::batch) use memory_model::MOST_COST;
pub use memory_model::MemoryModel;
