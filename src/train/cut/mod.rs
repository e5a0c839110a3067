//! Whether a closure's loss depends on the cut: the same samples together and in two parts.

mod compare;

use crate::batch::{CutCheck, CutFinding, Engine, Event};
use crate::error::{Error, LossError, Result};
use crate::memory::{recover, unmask};

pub(super) use compare::{Side, compare};

/// Samples of the first comparison.
pub(super) const FEW: usize = 7;
/// The second time, the loss is multiplied by this, which all types hold exactly and which rounds every intermediate result in another
/// way: the difference measures the noise of rounding and of underflow. It is about the ratio of the means over a part and the whole.
pub(super) const TIMES: f64 = 0.375;
/// Checks of a trainer until one decides: the first updates may have no gradient, or one that overflows until a loss scale is found.
const TRIES: usize = 8;

/// The checks that a trainer does by itself, at the end of a batch that was cut.
#[derive(Debug)]
pub(super) struct Checks {
    /// Samples of the next one; fewer than 2 if they did not fit.
    samples: usize,
    /// Checks that may still be undecided; none after one that decided.
    tries: usize,
}

impl Checks {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            samples: FEW,
            tries: if is_on { TRIES } else { 0 },
        }
    }

    /// The samples to check after a batch that was cut into these sizes: no more than were computed at once, but two.
    pub(super) fn due(&self, sizes: &[usize]) -> Option<usize> {
        let largest = sizes.iter().copied().max().unwrap_or_default();
        let samples = self.samples.min(largest.max(2));
        (sizes.len() > 1 && samples > 1 && self.tries > 0).then_some(samples)
    }

    /// Notes the result of a check and returns the event. What did not fit is tried again after the next cut with half the samples, and
    /// what could not be decided with as many; a loss that depends on the cut is an error each time.
    pub(super) fn note(
        &mut self,
        samples: usize,
        done: Result<CutFinding>,
        engine: &Engine,
    ) -> Result<Event> {
        let finding = match done.map_err(|error| unmask(error, &engine.device)) {
            Ok(finding) => finding,
            Err(Error::ResourceExhausted(exhausted)) => {
                recover(&engine.device)?;
                self.samples = match samples {
                    0..=2 => 0,
                    more => (more / 2).max(2),
                };
                CutFinding::Undecided(exhausted.to_string())
            }
            // Calls of a group would come out of step with the other ranks'.
            Err(error) if matches!(error, Error::Group(_)) || error.is_group() => {
                return Err(error);
            }
            Err(error) if error.device_fault().is_some() || is_dependent(&error) => {
                return Err(error);
            }
            // The sizes of a check are not those of micro-batches, and a closure may accept these only.
            Err(error) => {
                tracing::warn!(%error, "the closure fails on the samples of a check, so nothing is known of its cut");
                self.tries = 0;
                CutFinding::Undecided(error.to_string())
            }
        };
        self.tries = match finding {
            CutFinding::Undecided(_) => self.tries.saturating_sub(1),
            _ => 0,
        };
        let check = CutCheck::new(samples, finding);
        match check.is_warning() {
            true => tracing::warn!("{check}"),
            false => tracing::info!("{check}"),
        }
        Ok(Event::CutChecked(check))
    }
}

fn is_dependent(error: &Error) -> bool {
    matches!(error, Error::Loss(error) if matches!(**error, LossError::DependsOnCut { .. }))
}

/// Whether so many samples should fit, if fewer were ever computed at once.
pub(super) fn may_fit(engine: &Engine, samples: usize) -> bool {
    let (Some(memory), Some((size, bytes))) = (&engine.memory, engine.measured) else {
        return true;
    };
    let need = (bytes / size.max(1) as u64).saturating_mul(samples as u64);
    size >= samples || memory.would_fit(need) != Some(false)
}
