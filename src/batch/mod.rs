//! How batches are cut into micro-batches.

mod attempt;
mod engine;
mod event;
mod exhaustion;
mod find;
mod fixed;
mod halving;
mod history;
mod measured;
mod micro_batch;
mod model;
mod observer;
mod plan;
mod policy;
mod predictive;
mod process;
mod reporting;
mod slices;

pub(crate) use attempt::{Attempt, Failure, Held, Work, run_phase};
pub(crate) use engine::Engine;
pub use event::Event;
pub(crate) use exhaustion::conclude;
pub use find::find_batch_size;
pub use fixed::Fixed;
pub use halving::{Halving, HalvingBuilder};
pub(crate) use measured::Measured;
pub use micro_batch::MicroBatch;
use model::MOST_COST;
pub use model::MemoryModel;
pub use observer::{EventKind, Observer, Task, TrainingEvent};
pub use plan::{Plan, Reason};
pub use policy::{BatchPolicy, Completed, Extent, Failed};
pub use predictive::{Predictive, PredictiveBuilder};
pub use process::{BatchProcessor, BatchProcessorBuilder, Processed, process_batches};
pub(crate) use slices::extent_of;
pub use slices::{Batch, Parts, Samples};
