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
    /// `trainer.state()?.save(path)?` writes it to a file, and `trainer.load_state(&StateDict::load(path)?)?` continues from
    /// it.
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

    /// Continues from saved state. A policy's state is a hint: one that is missing, or that the policy cannot read, leaves the
    /// policy as it is and is logged with `tracing`.
    ///
    /// # Errors
    /// Those of the optimizer's [`load_state`](Commit::load_state). Nothing changes then.
    pub fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.optimizer_mut().load_state(state)?;
        for (name, engine) in [
            (TRAINING, &mut self.engine),
            (EVALUATION, &mut self.evaluation),
        ] {
            if let Some(learned) = state.metadata.get(name)
                && let Err(error) = engine.policy.load_state(learned)
            {
                tracing::warn!(%error, "saved micro-batch sizes are ignored");
            }
        }
        Ok(())
    }
}
