use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::accumulator::GradientAccumulator;
use super::positions::Positions;
use crate::error::{Result, StateError};
use crate::optim::{Commit, StateDict};

/// Its name in a state dict's metadata.
const NAME: &str = "training";
const VERSION: u32 = 2;
/// More updates and batches than any run has.
const MOST: u64 = 1 << 53;

/// How far a training has come, as it is saved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    version: u32,
    pub(super) updates: u64,
    /// The parameters that await their first gradient, with the number of updates in which it may arrive; `None` in older state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) awaited: Option<BTreeMap<String, usize>>,
    /// What only a trainer has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) trainer: Option<Trainer>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trainer {
    /// From which the seeds of micro-batches are derived.
    pub(super) seed: u64,
    /// Finished batches of training and of evaluation.
    pub(super) batches: [u64; 2],
    pub(super) positions: Positions,
}

/// What every version has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Progress {
    pub(super) fn of<O: Commit>(
        accumulator: &GradientAccumulator<O>,
        trainer: Option<Trainer>,
    ) -> Self {
        let parameters = accumulator.optimizer.parameters();
        Self {
            version: VERSION,
            updates: accumulator.updates,
            awaited: Some(accumulator.slots.awaited(parameters)),
            trainer,
        }
    }

    pub(super) fn metadata(&self) -> Result<BTreeMap<String, String>> {
        let text = serde_json::to_string(self).map_err(candle_core::Error::wrap)?;
        Ok(BTreeMap::from([(NAME.to_owned(), text)]))
    }

    /// `None` for state that an optimizer saved by itself.
    pub(super) fn read(state: &StateDict) -> Result<Option<Self>> {
        let Some(text) = state.metadata.get(NAME) else {
            return Ok(None);
        };
        let unfit = |problem: String| {
            let unfit = vec![format!("{NAME}: {problem}")];
            StateError {
                unfit,
                ..StateError::default()
            }
        };
        let wrong = |error: serde_json::Error| unfit(error.to_string());
        match serde_json::from_str(text).map_err(wrong)? {
            Version { version: VERSION } => {
                let progress: Self = serde_json::from_str(text).map_err(wrong)?;
                let trainer = progress.trainer.iter();
                let counts = trainer.flat_map(|trainer| trainer.batches);
                match counts.chain([progress.updates]).find(|count| *count > MOST) {
                    Some(count) => {
                        Err(unfit(format!("counts {count}, at most 2^53 is possible")).into())
                    }
                    None => Ok(Some(progress)),
                }
            }
            Version { version } => Err(unfit(format!(
                "version {version}, this crate reads version {VERSION}: continue with the crate that wrote it, or a newer one"
            ))
            .into()),
        }
    }
}
