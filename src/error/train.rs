//! What training can lose, and what it cannot undo.

use super::Error;

/// Adding a micro-batch's gradients failed half-way, or an update could not be begun, so what was accumulated was thrown away.
///
/// Parameters and optimizer are as they were; the samples of the window count as not seen. A trainer that holds the whole
/// batch starts the step again by itself when the reason is an exhaustion.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::{testing::Faults, Error, GradientAccumulator, Phase};
///
/// let (a, b) = (Var::new(1f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?);
/// let mut accumulator = GradientAccumulator::new(vec![a.clone(), b.clone()])?;
/// accumulator.add((a.sqr()? + b.sqr()?)?, 8)?;
/// let _armed = Faults::in_phase(Phase::Accumulate, 2).arm(); // between the two Vars
/// let Err(Error::WindowLost(lost)) = accumulator.add((a.sqr()? + b.sqr()?)?, 8) else { unreachable!() };
/// assert_eq!(lost.samples, 8);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error(
    "the gradients of {samples} samples were lost; parameters and optimizer are as they were: run the samples again ({reason})"
)]
#[non_exhaustive]
pub struct WindowLost {
    /// How many samples the lost gradients came from.
    pub samples: usize,
    /// Why.
    #[source]
    pub reason: Error,
}

/// The optimizer failed half-way through an update and cannot undo it: some parameters may have moved and others not, and its
/// own state may be partly advanced.
///
/// Going on would update the first parameters twice, so the trainer refuses every further step until it is given an optimizer
/// that fits its parameters: restore both from a checkpoint, then call `replace_optimizer`.
///
/// ```
/// use candle_headroom::{AdaptiveTrainer, Error, StepReport};
/// use candle_nn::{Optimizer, SGD};
///
/// fn after(result: Result<StepReport, Error>, trainer: &mut AdaptiveTrainer<SGD>, restored: SGD) {
///     if let Err(Error::UpdateInterrupted(interrupted)) = result {
///         println!("{interrupted}");
///         // … load the parameters of the last checkpoint, then:
///         trainer.replace_optimizer(restored);
///     }
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the optimizer was interrupted while it updated the parameters, which may be partly updated: restore both, and give a trainer the new one by `replace_optimizer`{}", because(.reason))]
#[non_exhaustive]
pub struct UpdateInterrupted {
    /// What interrupted it; `None` where a further step was refused.
    #[source]
    pub reason: Option<Error>,
}

fn because(reason: &Option<Error>) -> String {
    match reason {
        Some(reason) => format!(" ({reason})"),
        None => String::new(),
    }
}
