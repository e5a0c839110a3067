use std::collections::BTreeMap;

use super::adaptive::AdaptiveTrainer;
use super::progress::{Progress, Trainer};
use super::ranks::Ranks;
use super::recent::Recent;
use crate::error::Result;
use crate::optim::{Commit, StateDict};

/// Names of the policies' state in a state dict's metadata.
const TRAINING: &str = "micro_batches.training";
const EVALUATION: &str = "micro_batches.evaluation";

impl<O: Commit> AdaptiveTrainer<O> {
    /// Returns the optimizer's state, how far the training has come, and what the policies of training and evaluation have learned
    /// about memory, to save beside the model: a resumed run counts on, draws the same numbers and starts with sizes that fit.
    ///
    /// `trainer.state()?.save(path)?` writes a file, and `trainer.load_state(&StateDict::load(path)?)?` continues from it.
    ///
    /// With a [sharded](crate::optim::FusedBuilder::sharded) optimizer in a [group](super::AdaptiveTrainerBuilder::group) all ranks call it together.
    /// Rank 0's is the whole state, which any number of ranks can load, and the others' are empty. All of it comes to rank 0's host memory.
    ///
    /// # Errors
    /// Those of the optimizer's [`state`](Commit::state), and [`UpdateInterrupted`](crate::error::UpdateInterrupted) after one.
    pub fn state(&self) -> Result<StateDict> {
        let mut more = self.metadata()?;
        let mut state = self.core.optimizer_state()?;
        state.metadata.append(&mut more);
        Ok(state)
    }

    /// What the host holds of the state.
    pub(super) fn metadata(&self) -> Result<BTreeMap<String, String>> {
        let trainer = Trainer {
            seed: self.engine.seed,
            // A resumed run reads accumulated batches again, so they are not counted.
            batches: [self.core.accumulator.batches, self.evaluation.batches],
            positions: self.core.positions.clone(),
        };
        let mut metadata = Progress::of(&self.core.accumulator, Some(trainer)).metadata()?;
        for (name, engine) in [(TRAINING, &self.engine), (EVALUATION, &self.evaluation)] {
            let learned = engine.policy.state();
            metadata.extend(learned.map(|learned| (name.to_owned(), learned)));
        }
        Ok(metadata)
    }

    /// Continues from saved state: [`updates`](Self::updates), [`MicroBatch::step`](crate::MicroBatch::step) and the seed are those
    /// of the run that saved it. Batches that were accumulated are dropped, and [`Loader`](crate::data::Loader)s have to continue where the saved
    /// run stopped, as [`Loader::resume`](crate::data::Loader::resume) makes them. Buffers stay, because they are loaded with the parameters.
    /// Where a policy's state is missing, or cannot be read
    /// (which is logged), the policy stays as it is.
    ///
    /// It ends the refusal after [`UpdateInterrupted`](crate::error::UpdateInterrupted), unless the optimizer saves no state: restore the
    /// parameters first, as [`Checkpoints::resume`](crate::checkpoint::Checkpoints::resume) does.
    ///
    /// # Errors
    /// Those of the optimizer's [`load_state`](Commit::load_state), and [`StateError`](crate::error::StateError) for counters that
    /// cannot be read. Nothing changes then.
    pub fn load_state(&mut self, state: &StateDict) -> Result<()> {
        let trainer = self.core.accumulator.restore(state)?;
        self.core.forget_window();
        // A printed report would show a loss of the run before.
        self.core.accumulator.recent = Recent::default();
        self.core.given = 0;
        self.core.ranks.iter_mut().for_each(Ranks::compare);
        if let Some(trainer) = trainer {
            self.engine.seed = trainer.seed;
            [self.core.accumulator.batches, self.evaluation.batches] = trainer.batches;
            self.core.positions = trainer.positions;
            self.core.awaited.restore(self.core.positions.places());
        }
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
