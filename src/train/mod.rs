//! Gradient accumulation, and training steps that survive exhaustion.

mod accumulating;
mod accumulator;
mod accumulator_builder;
mod adaptive;
mod awaited;
mod buffers;
mod builder;
mod core;
mod cut;
mod estimate;
mod exchange;
mod exchanged;
mod flat;
mod input;
mod loss;
mod own_error;
mod positions;
mod progress;
#[cfg(feature = "distributed")]
mod ranks;
#[cfg(not(feature = "distributed"))]
#[path = "ranks/alone.rs"]
mod ranks;
mod reach;
mod recent;
mod report;
mod resumable;
mod slot;
mod slots;
mod state;
mod update;

pub use accumulating::AccumulatingTrainer;
pub use accumulator::GradientAccumulator;
pub use accumulator_builder::GradientAccumulatorBuilder;
pub use adaptive::AdaptiveTrainer;
pub use builder::AdaptiveTrainerBuilder;
pub use estimate::{Estimate, Measured};
pub use exchange::{Exchange, RankWork};
pub use input::StepInput;
pub use loss::{Loss, StepLoss};
pub use report::StepReport;
pub use resumable::Resumable;
