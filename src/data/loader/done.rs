use super::jobs::Job;
use super::produce::Made;
use crate::data::Tensors;
use crate::data::stage::{Load, Stage};
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
