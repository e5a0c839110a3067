use super::checkpoints::Checkpoints;
use super::document::Document;
use super::name::file_name;
use super::outcome::Rescued;
use super::snapshot::Snapshot;
use super::write::write_rescue;
use crate::error::{Error, Result};
use crate::train::Resumable;

/// The name of the call in which ranks meet.
const CALL: &str = "rescue";

impl Checkpoints {
    /// Saves what the host still has after a [`DeviceFault`](crate::DeviceFault): the counters, the positions of loaders, what policies
    /// have learned, and the [values](Self::set) of the caller, in `step-….rescue/state.json`. Parameters and optimizer state were on the
    /// device and are lost. A checkpoint that is being written is finished. Returns `None` if the error is no device fault.
    ///
    /// In a group all ranks call it with the errors that the failed step gave them. If the lost device is not rank 0's,
    /// [`save_now`](Self::save_now) on all ranks saves everything instead, because each rank has the whole model; not so if the optimizer's state is
    /// sharded, since a part of it is lost.
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
        let own = error.device_fault().map(ToString::to_string);
        let faults = self.ranks.agree(CALL, Ok(own.clone()), Clone::clone);
        let fault = match (faults, own) {
            (Ok((_, faults)), _) => faults.into_iter().flatten().next(),
            // The group has ended. Rank 0 saves what it can.
            (Err(_), Some(own)) if self.ranks.is_writer() => {
                return self.write_rescue(own, trainer).map(Some);
            }
            (Err(error), Some(_)) => return Err(error),
            (Err(_), None) => None,
        };
        let Some(fault) = fault else {
            return Ok(None);
        };
        let _working = self.ranks.working();
        let rescued = match self.ranks.is_writer() {
            true => self.write_rescue(fault, trainer).map(Some),
            false => Ok(None),
        };
        let word = |rescued: &Option<Rescued>| {
            let rescued = rescued.as_ref();
            rescued.map(|rescued| (file_name(&rescued.path), rescued.contents.clone()))
        };
        let (rescued, words) = self.ranks.agree(CALL, rescued, word)?;
        let told = words.into_iter().next().flatten();
        Ok(rescued.or_else(|| {
            let (name, contents) = told?;
            Some(Rescued {
                path: self.folder.path.join(name),
                step: trainer.updates(),
                latest: self.last.clone(),
                contents,
            })
        }))
    }

    fn write_rescue<T: Resumable + ?Sized>(
        &mut self,
        fault: String,
        trainer: &T,
    ) -> Result<Rescued> {
        self.settle();
        let step = trainer.updates();
        let mut document = Document::new(step);
        document.rescued_from = Some(fault);
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
        Ok(rescued)
    }
}
