//! Gradient accumulation, and training steps that survive exhaustion.

mod accumulating;
mod accumulation;
mod accumulator;
mod adaptive;
mod buffers;
mod builder;
mod contribution;
mod core;
mod evaluation;
mod loss;
mod report;
mod slots;
mod state;
mod step_loss;

pub use accumulating::AccumulatingTrainer;
pub use accumulator::{GradientAccumulator, GradientAccumulatorBuilder};
pub use adaptive::AdaptiveTrainer;
pub use builder::AdaptiveTrainerBuilder;
pub use loss::Loss;
pub use report::StepReport;
pub use step_loss::StepLoss;
