//! What training can lose, and what it cannot undo.

use super::Error;

/// Adding a micro-batch's gradients failed half-way, so what was accumulated so far was thrown away.
///
/// Parameters and optimizer are as they were; the samples of the window count as not seen. A trainer that holds the whole
/// batch starts the step again by itself when the reason is an exhaustion.
#[derive(Debug, thiserror::Error)]
#[error(
    "the gradients of {samples} samples were lost while the next were added; parameters and optimizer are as they were: run the samples again ({reason})"
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
#[derive(Debug, thiserror::Error)]
#[error("the optimizer was interrupted while it updated the parameters, which may be partly updated: restore parameters and optimizer state, then call `replace_optimizer`{}", because(.reason))]
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
