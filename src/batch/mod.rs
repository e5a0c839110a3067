//! How work is cut into micro-batches.

mod attempt;
mod drive;
mod event;
mod halving;
mod micro_batch;
mod parts;
mod phase;
mod policy;
mod process;
mod slices;

pub(crate) use attempt::Attempt;
pub(crate) use drive::{Drive, Failure, Outcome, Proven};
pub use event::Event;
pub use halving::Halving;
pub use micro_batch::MicroBatch;
pub(crate) use phase::run_phase;
pub use policy::{BatchPolicy, Completed, Failed, Fixed};
pub use process::{BatchProcessor, Processed, process_batches};
pub use slices::Batch;
pub(crate) use slices::samples_of;
