//! Gradient accumulation, and training steps that survive exhaustion.

mod accumulating;
mod accumulator;
mod adaptive;
mod buffers;
mod builder;
mod core;
mod evaluation;
mod explanation;
mod loss;
mod report;
mod slots;
mod state;
mod step_loss;
mod summary;
mod update;

pub use accumulating::{AccumulatingTrainer, AccumulatingTrainerBuilder};
pub use accumulator::{GradientAccumulator, GradientAccumulatorBuilder};
pub use adaptive::AdaptiveTrainer;
pub use builder::AdaptiveTrainerBuilder;
pub use explanation::Explanation;
pub use loss::Loss;
pub use report::StepReport;
pub use step_loss::StepLoss;
pub use summary::UpdateSummary;
