//! How batches are cut into micro-batches.

mod attempt;
mod cut;
mod division;
mod engine;
mod event;
mod exhaustion;
mod find;
mod fingerprint;
mod fixed;
mod halving;
mod history;
mod measured;
mod micro_batch;
mod model;
mod observer;
mod origin;
mod plan;
mod policy;
mod position;
mod predictive;
mod process;
mod processed;
mod recompute;
mod regions;
mod run;
mod slices;

pub(crate) use attempt::{Attempt, Failure, Held, Work, run_phase};
pub use cut::{CutCheck, CutFinding};
pub use division::Division;
pub(crate) use engine::Engine;
pub use event::Event;
pub(crate) use exhaustion::ended;
pub use find::find_batch_size;
pub use fingerprint::Fingerprint;
pub use fixed::Fixed;
pub use halving::{Halving, HalvingBuilder};
pub(crate) use measured::Measured;
pub use micro_batch::MicroBatch;
use model::MOST_COST;
pub use model::MemoryModel;
pub use observer::{EventKind, Observer, Task, TrainingEvent};
pub(crate) use origin::waited;
pub use origin::{Consumer, Origin};
pub use plan::{Plan, Reason};
pub(crate) use policy::at_least_one;
pub use policy::{BatchPolicy, Completed, Extent, Failed};
pub(crate) use position::Place;
pub use position::Position;
pub use predictive::{Predictive, PredictiveBuilder};
pub use process::{BatchProcessor, BatchProcessorBuilder, process_batches};
pub use processed::Processed;
pub use recompute::{Recompute, RecomputeReason, Recomputing, Regions};
pub(crate) use slices::not_empty;
pub use slices::{Batch, Parts, Samples};

#[doc(inline)]
pub use crate::__impl_batch as impl_batch;
#[doc(hidden)]
pub use candle_core::Device;
