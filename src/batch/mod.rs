//! How work is cut into micro-batches.

mod attempt;
mod decay;
mod drive;
mod event;
mod find;
mod fixed;
mod halving;
mod micro_batch;
mod model;
mod parts;
mod phase;
mod plan;
mod policy;
mod predictive;
mod process;
mod slices;

pub(crate) use attempt::Attempt;
pub use decay::Decay;
pub(crate) use drive::{Drive, Failure, Outcome, Proven};
pub use event::Event;
pub use find::{find_batch_size, find_batch_size_within};
pub use fixed::Fixed;
pub use halving::Halving;
pub use micro_batch::MicroBatch;
use model::MOST_COST;
pub use model::{MemoryModel, Prediction};
pub(crate) use phase::run_phase;
pub use plan::{Plan, Reason};
pub use policy::{BatchPolicy, Completed, Extent, Failed};
pub use predictive::Predictive;
pub use process::{BatchProcessor, Processed, process_batches};
pub use slices::Batch;
pub(crate) use slices::extent_of;
