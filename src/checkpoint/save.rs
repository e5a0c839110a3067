use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Tensor;

use super::checkpoints::Checkpoints;
use super::document::Document;
use super::outcome::{Saving, Written, is_of_saving};
use super::snapshot::{Snapshot, State};
use super::writer::write_and_rotate;
use crate::elements::size;
use crate::error::{Error, Result};
use crate::memory::DeviceMemory;
use crate::train::Resumable;

impl Checkpoints {
    /// What became of the checkpoint before, or `None` if the next one is due and can begin.
    pub(super) fn unless_due(&mut self, step: u64) -> Result<Option<Saving>> {
        let ended = match self.writer.poll() {
            Some(ended) => self.ended(step, ended.path)?.into(),
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
}
