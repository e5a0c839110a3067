//! Predicts what a micro-batch takes from what others have taken.

mod curve;
mod learn;
mod level;
mod memory_model;

pub(in crate::batch) use level::MOST_COST;
pub use memory_model::MemoryModel;
