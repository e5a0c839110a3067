use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::checkpoints::Checkpoints;
use super::name::file_name;
use super::outcome::{Saving, is_of_saving};
use super::signal::Signal;
use super::snapshot::State;
use crate::error::{CheckpointError, Error, Result};
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
    /// Calls `f`, which saves the trainer, on the rank that writes, when the others have written what they alone have.
    pub(super) fn as_writer<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        f: impl FnOnce(&mut Self, State) -> Result<Saving>,
    ) -> Result<Option<Saving>> {
        let _working = self.ranks.working();
        self.settle();
        let is_writer = self.ranks.is_writer();
        let owned = match is_writer {
            true => self.folder.check_owner().map_err(Error::from),
            false => Ok(()),
        };
        let group = self.ranks.group();
        let state = match group.and_then(|group| Some((group, trainer.part().transpose()?))) {
            Some((group, part)) => self.write_parts(group, trainer, owned.and(part)),
            None if is_writer => owned.and_then(|()| Ok(Some((trainer.state()?, None)))),
            None => Ok(None),
        };
        match state {
            Ok(Some(state)) => f(self, state).map(Some),
            Ok(None) => Ok(None),
            Err(error) if !is_of_saving(&error) => Err(error),
            Err(error) if is_writer => {
                let ended = self.ended(trainer.updates(), Err(error))?;
                Ok(Some(ended.into()))
            }
            Err(error) => Ok(Some(Saving::Failed(Arc::new(error)))),
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
        // A rank that could not save knows more of it than rank 0.
        let own = own.filter(|own| matches!(own, Saving::Failed(_)));
        let saving = own.or(first.saving.map(|told| told.saving(folder)));
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
            Self::Failed(reason) => {
                Saving::Failed(Arc::new(CheckpointError::peer(0, reason).into()))
            }
        }
    }
}
