use super::adaptive::AdaptiveTrainer;
use crate::batch::{Batch, MicroBatch, Plan, Processed};
use crate::error::Result;
use crate::optim::Commit;

impl<O: Commit> AdaptiveTrainer<O> {
    /// Runs `f` over all samples of `data` in order, in chunks that fit without gradients, and returns one result for each
    /// chunk: for evaluation between updates.
    ///
    /// A chunk that does not fit is computed again in smaller ones and counts once. With an error there are no results, so that
    /// no metric is computed from a part of the data. [Named buffers](super::AdaptiveTrainerBuilder::buffers) are restored.
    /// Weight a chunk's mean by its number of samples: chunks differ in size.
    ///
    /// # Errors
    /// As [`process_batches`](crate::process_batches).
    pub fn evaluate<'b, B: Batch + ?Sized, T>(
        &mut self,
        data: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<T>,
    ) -> Result<Processed<T>> {
        let _traces = self.core.at_micro_batch.guard()?;
        self.evaluation.process(data, f)
    }

    /// Returns the policy's plan for evaluation, as [`plan`](Self::plan) does for training.
    pub fn evaluation_plan(&self) -> Option<Plan> {
        self.evaluation.policy.plan()
    }
}
