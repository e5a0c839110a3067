//! How a checkpoint is begun and how it ended, as all ranks hear of it: rank 0 writes, and its word counts for all but the signal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::checkpoints::Checkpoints;
use super::document::Document;
use super::name::file_name;
use super::outcome::{Saving, Written, is_of_saving};
use super::signals::Signal;
use super::snapshot::{Snapshot, State};
use super::writer::write_and_rotate;
use crate::elements::size;
use crate::error::{CheckpointError, Error, Result};
use crate::memory::DeviceMemory;
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
    /// What became of the checkpoint before, or `None` if the next one is due and can begin.
    pub(super) fn unless_due(&mut self, step: u64) -> Result<Option<Saving>> {
        let ended = match self.writer.poll() {
            Some((_, path)) => self.ended(step, path)?.into(),
            None => Saving::NotDue,
        };
        let has_failed = matches!(ended, Saving::Failed(_));
        Ok(match has_failed || !self.schedule.is_due(step) {
            true => Some(ended),
            false => self.writer.is_busy().then_some(Saving::Busy),
        })
    }

    /// Begins a checkpoint, in the background if its memory is there.
    pub(super) fn begin<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        loss: Option<f64>,
        state: State,
    ) -> Result<Saving> {
        if !self.settings.in_background {
            return self.save(trainer, loss, state).map(Saving::from);
        }
        let snapshot = self.snapshot(trainer, loss, state, true)?;
        if !snapshot.is_copy {
            return self.write(&snapshot).map(Saving::from);
        }
        let (step, keep) = (snapshot.step, self.settings.keep.clone());
        match self.writer.start(snapshot, &self.folder.path, keep) {
            Ok(()) => Ok(Saving::Started),
            Err(error) => self.ended(step, Err(error)).map(Saving::from),
        }
    }

    /// Saves while the caller waits.
    pub(super) fn save<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        loss: Option<f64>,
        state: State,
    ) -> Result<Written> {
        let snapshot = self.snapshot(trainer, loss, state, false)?;
        self.write(&snapshot)
    }

    fn write(&mut self, snapshot: &Snapshot) -> Result<Written> {
        let path = write_and_rotate(snapshot, &self.folder.path, &self.settings.keep);
        self.ended(snapshot.step, path)
    }

    /// Takes what is saved. The model is copied if that is asked for and there is room.
    fn snapshot<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        loss: Option<f64>,
        state: State,
        copies: bool,
    ) -> Result<Snapshot> {
        let step = trainer.updates();
        // The state is a copy in any case, so what is free now is there for the model.
        let model = trainer.values();
        let metrics = self.metrics.of(step, loss);
        let mut document = Document::new(step);
        document.metrics.clone_from(&metrics);
        document.values.clone_from(&self.values);
        let buffer = match copies {
            true => self.room_for(&model)?,
            false => None,
        };
        let most = self.settings.shard_bytes;
        let snapshot = Snapshot::take(model, state, document, most, buffer)?;
        self.metrics.begun(step, metrics);
        self.schedule.started(step);
        Ok(snapshot)
    }

    /// A buffer for a copy of the model, if there is room for one.
    fn room_for(&mut self, model: &[(String, Tensor)]) -> Result<Option<Vec<u8>>> {
        let bytes: usize = model.iter().map(|(_, tensor)| size(tensor)).sum();
        let more = (bytes as u64).saturating_sub(self.writer.buffer_bytes());
        if more > 0 && DeviceMemory::host().open()?.would_fit(more) == Some(false) {
            return Ok(None);
        }
        Ok(self.writer.take_buffer(bytes))
    }

    /// Takes over how writing ended. An error that is not the file system's comes back.
    pub(super) fn ended(&mut self, step: u64, path: Result<PathBuf>) -> Result<Written> {
        match path {
            Ok(path) => {
                self.schedule.succeeded();
                self.metrics.succeeded();
                self.last_error = None;
                self.last = Some(path.clone());
                Ok(Ok(path))
            }
            Err(error) => {
                self.schedule.failed(step);
                self.metrics.failed();
                match is_of_saving(&error) {
                    true => Ok(Err(self.keep_error(error))),
                    false => Err(error),
                }
            }
        }
    }

    fn keep_error(&mut self, error: Error) -> Arc<Error> {
        tracing::warn!(%error, "a checkpoint could not be written");
        let error = Arc::new(error);
        self.last_error = Some(Arc::clone(&error));
        error
    }

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
