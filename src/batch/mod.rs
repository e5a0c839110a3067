//! How batches are cut into micro-batches.

mod attempt;
mod division;
mod engine;
mod event;
mod find;
mod halving;
mod measured;
mod model;
mod observer;
mod policy;
mod position;
mod predictive;
mod process;
mod recompute;
mod regions;
mod run;
mod slices;
mod trials;

pub(crate) use attempt::{Attempt, Failure, Held, Work, run_phase};
pub use division::Division;
pub(crate) use division::SharedDivision;
pub(crate) use engine::Engine;
pub use engine::Processed;
pub use event::{CutCheck, CutFinding, Event};
pub use find::find_batch_size;
pub use halving::{Halving, HalvingBuilder};
pub(crate) use measured::{Measured, ended};
use model::MOST_COST;
pub use model::MemoryModel;
pub use observer::{EventKind, MicroBatch, Observer, Task, TrainingEvent};
pub(crate) use policy::at_least_one;
pub use policy::{BatchPolicy, Completed, Extent, Failed, Fixed};
pub use position::{Consumer, Fingerprint, Origin, Position};
pub(crate) use position::{Place, waited};
pub use predictive::{Predictive, PredictiveBuilder};
pub use process::{BatchProcessor, BatchProcessorBuilder, process_batches};
pub use recompute::{Plan, Reason, Recompute, RecomputeReason, Recomputing, Regions};
pub(crate) use slices::not_empty;
pub use slices::{Batch, Parts, Samples};

#[doc(inline)]
pub use crate::__impl_batch as impl_batch;
#[doc(hidden)]
pub use candle_core::Device;
