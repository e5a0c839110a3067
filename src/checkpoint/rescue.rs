use super::checkpoints::Checkpoints;
use super::document::Document;
use super::outcome::Rescued;
use super::snapshot::Snapshot;
use super::write::write_rescue;
use crate::error::{Error, Result};
use crate::train::Resumable;

impl Checkpoints {
    /// Saves what the host still has after a [`DeviceFault`](crate::DeviceFault): the counters, the positions of loaders, what policies
    /// have learned, and the [values](Self::set) of the caller, in `step-….rescue/state.json`. Parameters and optimizer state were on the
    /// device and are lost. A checkpoint that is being written is finished. Returns `None` if the error is no device fault.
    ///
    /// The device is not touched. A rescue is not a checkpoint: [`resume`](Self::resume) never takes it for one.
    ///
    /// # Errors
    /// [`CheckpointError`](crate::error::CheckpointError) if it cannot be written.
    pub fn rescue<T: Resumable + ?Sized>(
        &mut self,
        error: &Error,
        trainer: &T,
    ) -> Result<Option<Rescued>> {
        let Some(fault) = error.device_fault() else {
            return Ok(None);
        };
        // The rescue is worth more than the report of a failed checkpoint, which was logged.
        let _ = self.flush();
        let step = trainer.updates();
        let mut document = Document::new(step);
        document.rescued_from = Some(fault.to_string());
        document.values.clone_from(&self.values);
        document.training = trainer.progress()?;
        let path = write_rescue(&Snapshot::rescue(&document)?, &self.folder.path)?;
        let mut contents = vec!["the number of updates".to_owned()];
        contents.extend(document.training.into_keys());
        contents.extend(document.values.into_keys());
        let rescued = Rescued {
            path,
            step,
            latest: self.last.clone(),
            contents,
        };
        tracing::error!("{rescued}");
        Ok(Some(rescued))
    }
}
