use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::checkpoints::Checkpoints;
use super::outcome::Saving;
use super::save::Written;
use super::signal::Signal;
use crate::error::{CheckpointError, Result};

/// What the ranks tell each other when they meet. Of all but the signal rank 0's counts.
#[derive(Debug, Serialize, Deserialize)]
struct Word {
    saving: Option<Told>,
    /// The name of the last checkpoint.
    last: Option<String>,
    next: u64,
    signal: Option<Signal>,
}

/// [`Saving`] as others hear of it.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    NotDue,
    Started,
    Saved(String),
    Busy,
    Failed(String),
}

impl Checkpoints {
    /// Returns on all ranks what rank 0 has done. If one has failed, all fail.
    pub(super) fn together(
        &mut self,
        call: &str,
        done: Result<Option<Saving>>,
    ) -> Result<Option<Saving>> {
        if !self.ranks.are_several() {
            return done;
        }
        let word = |saving: &Option<Saving>| Word {
            saving: saving.as_ref().map(Told::new),
            last: self.last.as_deref().map(name),
            next: match self.writer.is_busy() {
                true => 0,
                false => self.schedule.next(),
            },
            signal: self.signals.received(),
        };
        let (own, words) = self.ranks.agree(call, done, word)?;
        self.ranks.signal = words.iter().find_map(|word| word.signal);
        let Some(first) = words.into_iter().next() else {
            return Ok(own);
        };
        self.ranks.next = first.next;
        if self.ranks.is_writer() {
            return Ok(own);
        }
        let folder = &self.folder.path;
        self.last = first.last.map(|name| folder.join(name));
        let saving = first.saving.map(|told| told.saving(folder));
        match &saving {
            Some(Saving::Saved(_)) => self.last_error = None,
            Some(Saving::Failed(error)) => self.last_error = Some(Arc::clone(error)),
            _ => {}
        }
        Ok(saving)
    }
}

impl Told {
    fn new(saving: &Saving) -> Self {
        match saving {
            Saving::NotDue => Self::NotDue,
            Saving::Started => Self::Started,
            Saving::Saved(path) => Self::Saved(name(path)),
            Saving::Busy => Self::Busy,
            Saving::Failed(error) => Self::Failed(error.to_string()),
        }
    }

    fn saving(self, folder: &Path) -> Saving {
        match self {
            Self::NotDue => Saving::NotDue,
            Self::Started => Saving::Started,
            Self::Saved(name) => Saving::Saved(folder.join(name)),
            Self::Busy => Saving::Busy,
            Self::Failed(reason) => Saving::Failed(peer(reason)),
        }
    }
}

/// How a checkpoint was written for which the ranks waited.
pub(super) fn written(saving: Option<Saving>) -> Written {
    match saving {
        Some(Saving::Saved(path)) => Ok(path),
        Some(Saving::Failed(error)) => Err(error),
        _ => Err(peer("it saved nothing".to_owned())),
    }
}

/// The name of a checkpoint in the folder, whose path may be another on each rank.
pub(super) fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn peer(reason: String) -> Arc<CheckpointError> {
    Arc::new(CheckpointError::Peer { rank: 0, reason })
}
