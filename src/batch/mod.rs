//! How batches are cut into micro-batches.
//!
//! A [`Batch`] is anything with samples in an order. A [`BatchPolicy`] chooses how many of them the next micro-batch has. Trainers,
//! [`process_batches`] and [`BatchProcessor`] run the micro-batches, and compute again what did not fit.
//!
//! # Guarantees
//! - **Each sample is in exactly one result,** in order. Finished micro-batches are kept when a later one fails.
//! - **A batch ends.** After a failure the next attempt at the same samples is smaller, or recomputes marked regions; once it may be the same again,
//!   where the cause may have passed. The end is the last sample, or [`ResourceExhausted`](crate::ResourceExhausted) for the size that the
//!   policy does not make smaller: with [`Predictive`] and [`Halving`], one sample.
//! - **Sizes follow from memory alone.** A policy sees [costs](Extent::cost), bytes and outcomes, and neither a clock nor a device. The same readings
//!   give the same sizes, and a resumed run goes on with the sizes that it had. Only [`Recompute::Measured`] decides by times.
//! - **Nothing but memory that ran out is retried,** and nothing after a device fault.
//! - **Observers see one stream.** The [events](EventKind) of a batch come in order on the training thread, from `BatchBegan` to `BatchEnded` or
//!   `BatchFailed`.

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
