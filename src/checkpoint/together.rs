use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::checkpoints::Checkpoints;
use super::name::file_name;
use super::outcome::Saving;
use super::signal::Signal;
use crate::error::{CheckpointError, Result};
use crate::train::Resumable;

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
    /// Calls `f`, which saves the trainer, on the rank that writes.
    pub(super) fn as_writer<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        f: impl FnOnce(&mut Self) -> Result<Saving>,
    ) -> Result<Option<Saving>> {
        let _working = self.ranks.working();
        match self.ranks.is_writer() {
            true => f(self).map(Some),
            false => trainer.give_state().map(|()| None),
        }
    }

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
            last: self.last.as_deref().map(file_name),
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
            Saving::Saved(path) => Self::Saved(file_name(path)),
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
            Self::Failed(reason) => Saving::Failed(Arc::new(CheckpointError::peer(reason).into())),
        }
    }
}
