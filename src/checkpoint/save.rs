use std::path::PathBuf;
use std::sync::Arc;

use super::bytes::size;
use super::checkpoints::Checkpoints;
use super::document::Document;
use super::outcome::Saving;
use super::snapshot::Snapshot;
use super::writer::write_and_rotate;
use crate::error::{CheckpointError, Error, Result};
use crate::memory::DeviceMemory;
use crate::train::{Resumable, StepReport};

const LOSS: &str = "loss";

impl Checkpoints {
    pub(super) fn read_loss(&mut self, report: &StepReport) -> Result<()> {
        if !self.metrics.contains_key(LOSS) {
            self.metric(LOSS, report.loss.read()?);
        }
        Ok(())
    }

    /// Begins a checkpoint, in the background if its memory is there.
    pub(super) fn begin<T: Resumable + ?Sized>(&mut self, trainer: &T) -> Result<Saving> {
        let values = trainer.values();
        let bytes: usize = values.iter().map(|(_, tensor)| size(tensor)).sum();
        let more = (bytes as u64).saturating_sub(self.writer.buffer_bytes());
        let has_room = || -> Result<bool> {
            Ok(more == 0 || DeviceMemory::host().open()?.would_fit(more) != Some(false))
        };
        let step = trainer.updates();
        if !self.settings.in_background || !has_room()? {
            let snapshot = self.snapshot(trainer, None)?;
            let path = write_and_rotate(&snapshot, &self.folder.path, &self.settings.keep);
            return self.note(step, path);
        }
        let buffer = self.writer.take_buffer();
        let snapshot = self.snapshot(trainer, Some(buffer))?;
        let keep = self.settings.keep.clone();
        match self.writer.start(snapshot, &self.folder.path, keep) {
            Ok(()) => Ok(Saving::Started),
            Err(error) => self.note(step, Err(error)),
        }
    }

    /// Saves while the caller waits.
    pub(super) fn save<T: Resumable + ?Sized>(&mut self, trainer: &T) -> Result<PathBuf> {
        let snapshot = self.snapshot(trainer, None)?;
        let path = write_and_rotate(&snapshot, &self.folder.path, &self.settings.keep)?;
        self.schedule.succeeded();
        self.last_error = None;
        self.last = Some(path.clone());
        Ok(path)
    }

    fn snapshot<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        buffer: Option<Vec<u8>>,
    ) -> Result<Snapshot> {
        let mut document = Document::new(trainer.updates());
        document.metrics.clone_from(&self.metrics);
        document.values.clone_from(&self.values);
        let (model, state) = (trainer.values(), trainer.state()?);
        let most = self.settings.shard_bytes;
        let snapshot = Snapshot::take(model, state, document, most, buffer)?;
        self.metrics.clear();
        self.schedule.started(snapshot.step);
        Ok(snapshot)
    }

    /// Takes over how writing ended. An error that is not the file system's comes back.
    pub(super) fn note(&mut self, step: u64, path: Result<PathBuf>) -> Result<Saving> {
        match path {
            Ok(path) => {
                self.schedule.succeeded();
                self.last_error = None;
                self.last = Some(path.clone());
                Ok(Saving::Saved(path))
            }
            Err(Error::Checkpoint(error)) => {
                self.schedule.failed(step);
                Ok(Saving::Failed(self.keep_error(*error)))
            }
            Err(other) => Err(other),
        }
    }

    pub(super) fn keep_error(&mut self, error: CheckpointError) -> Arc<CheckpointError> {
        tracing::warn!(%error, "a checkpoint could not be written");
        let error = Arc::new(error);
        self.last_error = Some(Arc::clone(&error));
        error
    }
}
