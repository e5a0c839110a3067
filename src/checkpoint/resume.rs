use super::checkpoint::Checkpoint;
use super::checkpoints::Checkpoints;
use super::name::Name;
use super::outcome::Resumed;
use crate::error::Result;
use crate::train::Resumable;

impl Checkpoints {
    /// Continues from the newest intact checkpoint: sets the model's parameters in place, and the trainer's state. Returns `None` if the
    /// folder holds no checkpoint. The saved values replace those that were [set](Self::set) before.
    ///
    /// Only the run's writer can do so. Other ranks read: see [`Checkpoint::resume`].
    ///
    /// # Errors
    /// Those of [`Checkpoint::latest`] and [`Checkpoint::resume`]. The trainer is as it was then.
    pub fn resume<T: Resumable + ?Sized>(&mut self, trainer: &mut T) -> Result<Option<Resumed>> {
        self.settle();
        let Some(checkpoint) = Checkpoint::latest(&self.folder.path)? else {
            return Ok(None);
        };
        checkpoint.resume(trainer)?;
        let step = checkpoint.step();
        self.values.clone_from(&checkpoint.document.values);
        self.metrics.resumed(step, checkpoint.metrics());
        self.schedule.started(step);
        self.unread = None;
        let path = checkpoint.path().to_owned();
        self.last = Some(path.clone());
        let skipped = checkpoint.skipped().to_vec();
        let names = skipped
            .iter()
            .filter_map(|skipped| skipped.path.file_name()?.to_str());
        self.settings.keep.damaged = names.filter_map(Name::parse).collect();
        Ok(Some(Resumed {
            step,
            path,
            skipped,
        }))
    }
}
