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
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom::optim::StateDict;
    /// use candle_headroom::{AdamW, AdaptiveTrainer};
    /// use candle_nn::{linear, VarBuilder, VarMap};
    ///
    /// let varmap = VarMap::new();
    /// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// # let path = std::env::temp_dir().join(format!("candle-headroom-trainer-{}.safetensors", std::process::id()));
    /// trainer.state()?.save(&path)?;
    /// trainer.load_state(&StateDict::load(&path)?)?;
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of the optimizer's [`state`](Commit::state).
    pub fn state(&self) -> Result<StateDict> {
        let mut state = self.optimizer().state()?;
        let learned = [
            (TRAINING, self.engine.policy.state()),
            (EVALUATION, self.evaluation.state()),
        ];
        for (name, learned) in learned {
            if let Some(learned) = learned {
                state.metadata.insert(name.to_owned(), learned);
            }
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
        let learned = [
            (TRAINING, &mut self.engine.policy),
            (EVALUATION, self.evaluation.policy_mut()),
        ];
        for (name, policy) in learned {
            if let Some(learned) = state.metadata.get(name)
                && let Err(error) = policy.load_state(learned)
            {
                tracing::warn!(%error, "saved micro-batch sizes are ignored");
            }
        }
        Ok(())
    }
}
