//! How batches are cut into micro-batches.

mod attempt;
mod engine;
mod event;
mod halving;
mod measured;
mod model;
mod policy;
mod position;
mod predictive;
mod process;
mod recompute;
mod regions;
mod run;
mod slices;
mod speed;

pub(crate) use attempt::{Attempt, Failure, Held, Work, run_phase};
pub(crate) use engine::Engine;
pub use engine::Processed;
pub use event::{
    CutCheck, CutFinding, Event, EventKind, MicroBatch, Observer, Task, TrainingEvent,
};
pub use halving::{Halving, HalvingBuilder};
pub(crate) use measured::{Measured, ended};
use model::MOST_COST;
pub use model::MemoryModel;
pub(crate) use policy::at_least_one;
pub use policy::{BatchPolicy, Completed, Extent, Failed, Fixed};
pub use position::{Consumer, Division, Fingerprint, Origin, Position};
pub(crate) use position::{Place, SharedDivision, waited};
pub use predictive::{Predictive, PredictiveBuilder};
pub use process::{BatchProcessor, BatchProcessorBuilder, find_batch_size, process_batches};
pub use recompute::{Plan, Reason, Recompute, RecomputeReason, Recomputing, Regions};
pub(crate) use slices::not_empty;
pub use slices::{Batch, Parts, Samples};
pub use speed::Speed;

#[doc(inline)]
pub use crate::__impl_batch as impl_batch;
#[doc(hidden)]
pub use candle_core::Device;
