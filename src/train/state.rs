use super::adaptive::AdaptiveTrainer;
use crate::error::Result;
use crate::optim::{Commit, StateDict};

/// Names of the policies' state in a state dict's metadata.
const TRAINING: &str = "micro_batches.training";
const EVALUATION: &str = "micro_batches.evaluation";

impl<O: Commit> AdaptiveTrainer<O> {
    /// Returns the optimizer's state, and what the policies of training and evaluation have learned about memory, to save
    /// with a checkpoint: a resumed run starts with sizes that fit.
    ///
    /// `trainer.state()?.save(path)?` writes a file, and `trainer.load_state(&StateDict::load(path)?)?` continues from it.
    ///
    /// # Errors
    /// Those of the optimizer's [`state`](Commit::state).
    pub fn state(&self) -> Result<StateDict> {
        let mut state = self.optimizer().state()?;
        for (name, engine) in [(TRAINING, &self.engine), (EVALUATION, &self.evaluation)] {
            let learned = engine.policy.state();
            (state.metadata).extend(learned.map(|learned| (name.to_owned(), learned)));
        }
        Ok(state)
    }

    /// Continues from saved state. Where a policy's is missing, or cannot be read (which is logged), the policy stays as it is.
    ///
    /// # Errors
    /// Those of the optimizer's [`load_state`](Commit::load_state). Nothing changes then.
    pub fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.optimizer_mut().load_state(state)?;
        let engines = [&mut self.engine, &mut self.evaluation];
        for (name, engine) in [TRAINING, EVALUATION].into_iter().zip(engines) {
            if let Some(learned) = state.metadata.get(name)
                && let Err(error) = engine.policy.load_state(learned)
            {
                tracing::warn!(%error, "saved micro-batch sizes are ignored");
            }
        }
        Ok(())
    }
}
