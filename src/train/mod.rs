//! Gradient accumulation, and training steps that survive exhaustion.

mod accumulating;
mod accumulator;
mod adaptive;
mod buffers;
mod builder;
mod core;
mod cut;
mod estimate;
mod flat;
mod input;
mod loss;
mod positions;
#[cfg(feature = "distributed")]
mod ranks;
#[cfg(not(feature = "distributed"))]
#[path = "ranks/alone.rs"]
mod ranks;
mod report;
mod resumable;
mod slots;
mod update;

pub use accumulating::AccumulatingTrainer;
pub use accumulator::{GradientAccumulator, GradientAccumulatorBuilder};
pub use adaptive::AdaptiveTrainer;
pub use builder::AdaptiveTrainerBuilder;
pub use estimate::Estimate;
pub use input::StepInput;
pub use loss::{Loss, StepLoss};
pub use report::{Exchange, RankWork, StepReport};
pub use resumable::Resumable;
