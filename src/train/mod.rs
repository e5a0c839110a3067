//! Who drives: gradient accumulation and training steps that survive exhaustion.

mod accumulating;
mod accumulator;
mod adaptive;
mod buffers;
mod builder;
mod core;
mod explanation;
mod loss;
mod report;
mod state;
mod window;

pub use accumulating::AccumulatingTrainer;
pub use accumulator::GradientAccumulator;
pub use adaptive::AdaptiveTrainer;
pub use builder::AdaptiveTrainerBuilder;
pub use explanation::Explanation;
pub use loss::{Loss, StepLoss};
pub use report::StepReport;
pub use window::Window;
