use super::adaptive::AdaptiveTrainer;
use super::explanation::Explanation;
use crate::batch::{Batch, MicroBatch, Plan, Processed};
use crate::error::Result;
use crate::optim::Commit;

impl<O: Commit> AdaptiveTrainer<O> {
    /// Returns the micro-batch size that a batch of `samples` would begin with.
    pub fn micro_batch(&self, samples: usize) -> usize {
        self.engine.policy.size(samples)
    }

    /// Runs `f` over all samples of `data` in order, in chunks that fit without gradients, and returns one result for each
    /// chunk: for evaluation between updates.
    ///
    /// A chunk that does not fit is computed again in smaller ones and counts once. With an error there are no results, so that
    /// no metric is computed from a part of the data. [Named buffers](super::AdaptiveTrainerBuilder::buffers) are restored.
    /// Weight a chunk's mean by its number of samples: chunks differ in size.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    ///
    /// let w = Var::new(&[2f32], &Device::Cpu)?;
    /// let mut trainer = AdaptiveTrainer::builder(Sgd::builder(vec![w.clone()]).build()?).build()?;
    /// let data = Tensor::arange(0f32, 100., &Device::Cpu)?;
    /// let evaluated = trainer.evaluate(&data, |x, _| {
    ///     if x.dim(0)? > 40 {
    ///         candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY") // room for 40
    ///     }
    ///     x.broadcast_mul(&w)?.sum_all()?.to_scalar::<f32>()
    /// })?;
    /// assert_eq!(evaluated.results.iter().sum::<f32>(), 2. * 4950.);
    /// assert_eq!(evaluated.sizes, [25, 25, 25, 25]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`process_batches`](crate::process_batches).
    pub fn evaluate<'b, B, T>(
        &mut self,
        data: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<T>,
    ) -> Result<Processed<T>>
    where
        B: Batch + ?Sized,
    {
        let evaluation = &mut self.evaluation;
        self.core.without_traces(|| evaluation.process(data, f))
    }

    /// Returns the policy's plan for training; `None` for a policy without one.
    pub fn plan(&self) -> Option<Plan> {
        self.engine.policy.plan()
    }

    /// Explains the micro-batch sizes of training and evaluation: `{}` for people, serde for programs.
    pub fn explain(&self) -> Explanation {
        let evaluation = self.evaluation.plan();
        Explanation {
            training: self.plan(),
            evaluation: evaluation.filter(|_| self.evaluation.has_run()),
        }
    }
}
