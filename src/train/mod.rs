//! Gradient accumulation, and training steps that survive running out of memory.
//!
//! | type | an update has | what does not fit |
//! |---|---|---|
//! | [`AdaptiveTrainer`] | one batch, or several that were accumulated | is computed again in smaller micro-batches |
//! | [`AccumulatingTrainer`] | `k` batches | is an error, unless a policy is set that cuts batches |
//! | [`GradientAccumulator`] | the micro-batches that were added | is the caller's to repeat |
//!
//! Each of them owns the optimizer and differentiates the [`Loss`] that your code returns.
//!
//! # Guarantees
//! - **The update does not depend on the cut.** Its gradient is the weighted mean over all samples: each loss has a weight, and the sum of the
//!   gradients is divided by the sum of the weights. Other sizes of micro-batches change it within rounding; the same sizes from the same
//!   state give the same bits on the CPU. Whether the closure's loss allows that is [checked](AdaptiveTrainer::check_cut) when a batch is
//!   first cut.
//! - **Each sample counts once.** An attempt that fails is dropped as a whole, and finished micro-batches are kept.
//! - **An update is applied once or not at all** by this crate's optimizers. What it needs is allocated before the first parameter changes.
//!   With an optimizer that cannot do so, a failure half-way is [`UpdateInterrupted`](crate::error::UpdateInterrupted), and every further step
//!   is refused until parameters and optimizer are restored.
//! - **An error leaves no trace,** a panic in the closure neither: parameters, optimizer, gradients of earlier batches, buffers, counters and the
//!   positions of loaders are as before. Gradients cannot be taken out of a mean. Where a micro-batch was added in part, all that was
//!   accumulated since the last update is dropped, and [`WindowLost`](crate::error::WindowLost) has the number of samples.
//! - **Only memory that ran out is retried.** Any other error comes back at once. A step ends, because at one position of a batch each further
//!   attempt but one is smaller or recomputes activations, and a batch is started again three times at most.
//!
//! An accumulator knows nothing of the forward pass, so buffers, retries and loaders are the caller's there.

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
