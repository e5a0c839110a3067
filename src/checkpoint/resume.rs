use super::checkpoint::Checkpoint;
use super::checkpoints::Checkpoints;
use super::load::{Tolerance, check_memory, fit};
use super::name::Name;
use super::outcome::Resumed;
use crate::error::Result;
use crate::train::Resumable;

impl Checkpoints {
    /// Continues from the newest intact checkpoint: sets the model's parameters in place, and the trainer's state. Returns `None` if the
    /// folder holds no checkpoint. The saved values replace those that were [set](Self::set) before.
    ///
    /// For a moment the host holds a copy of the parameters as they were, to restore them if something fails.
    ///
    /// # Errors
    /// [`CheckpointError`]: `NoneIntact`, `Differs` with every difference of the model, `Memory`, `Name`, `File`;
    /// [`StateError`](crate::error::StateError) with every difference of the optimizer's state; errors from candle. The trainer is as it
    /// was then.
    pub fn resume<T: Resumable + ?Sized>(&mut self, trainer: &mut T) -> Result<Option<Resumed>> {
        self.flush()?;
        let Some(checkpoint) = Checkpoint::latest(&self.folder.path)? else {
            return Ok(None);
        };
        let (saved, state) = (
            checkpoint.tensors("model")?,
            checkpoint.tensors("optimizer")?,
        );
        check_memory(
            checkpoint.path(),
            saved.bytes().saturating_add(state.bytes()),
        )?;
        let model = trainer.model();
        let fitting = fit(checkpoint.path(), &saved, &model, &Tolerance::default())?;
        let state = checkpoint.state()?;
        fitting.set(|| trainer.load_state(&state))?;

        let step = checkpoint.step();
        self.values.clone_from(&checkpoint.document.values);
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
