use super::jobs::Job;
use super::produce::{Made, Produce};
use crate::data::caught::caught;
use crate::data::stage::{Load, Stage};
use crate::data::{Tensors, tensors};
use crate::error::{DataError, Result};

/// A job and what was made of it.
pub(super) struct Done<B> {
    pub(super) job: Job,
    pub(super) made: Result<Made<B>, DataError>,
    /// The batch's tensors, where they are on their way to a device.
    pub(super) load: Option<Load>,
    pub(super) bytes: u64,
}

impl<B: Tensors> Done<B> {
    /// Makes a batch, and copies it to where the device can fetch it.
    pub(super) fn make(
        mut job: Job,
        produce: &dyn Produce<B>,
        stage: &Stage,
        is_stopped: &dyn Fn() -> bool,
    ) -> Self {
        let (mut load, mut bytes) = (None, 0);
        let failed = job.failed.take();
        let made = caught(|| {
            if let Some(failed) = failed {
                return Err(failed);
            }
            let mut made = produce.make(&job, is_stopped)?;
            if let Made::Batch { batch, .. } = &mut made {
                bytes = tensors::bytes(batch);
                load = stage.pin(batch);
            }
            Ok(made)
        });
        let panicked =
            |message| DataError::Setting(format!("a loader's worker panicked: {message}"));
        let made = made.unwrap_or_else(|message| Err(panicked(message)));
        Self {
            job,
            made,
            load,
            bytes,
        }
    }

    /// Begins to copy the batch to the device. If that fails, it is tried again when the batch is delivered.
    pub(super) fn depart(&mut self) {
        if let Some(Err(error)) = self.load.as_mut().map(Load::depart) {
            tracing::debug!(%error, "a batch is not copied ahead");
        }
    }

    /// Puts the batch on the device. After an error it can be tried again.
    pub(super) fn deliver(&mut self, stage: &Stage) -> Result<()> {
        match &mut self.made {
            Ok(Made::Batch { batch, .. }) => stage.deliver(batch, &mut self.load),
            _ => Ok(()),
        }
    }
}
