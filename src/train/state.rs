//! What a trainer keeps for another run.

use std::collections::BTreeMap;

use super::AdaptiveTrainer;
use crate::error::Result;
use crate::optim::{Algorithm, Commit, Fused, StateDict};

/// Under which names it lies in a state dict's metadata.
const TRAINING: &str = "micro_batches.training";
const EVALUATION: &str = "micro_batches.evaluation";

impl<O: Commit> AdaptiveTrainer<O> {
    /// What the policies of training and evaluation have learned, as named words: to be kept with a checkpoint, so that a
    /// resumed run starts with the sizes that fit and without failures. [`state_dict`](Self::state_dict) holds it already.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::AdaptiveTrainer;
    /// use candle_nn::{Optimizer, SGD};
    ///
    /// let w = Var::new(&[1f32], &Device::Cpu)?;
    /// let trainer = || AdaptiveTrainer::builder(vec![w.clone()], SGD::new(vec![w.clone()], 0.1)?).build();
    /// let x = Tensor::ones(64, candle_core::DType::F32, &Device::Cpu)?;
    /// let room_for_20 = |x: Tensor| match x.dim(0)? {
    ///     0..=20 => x.broadcast_mul(&w)?.mean_all(),
    ///     _ => candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY"),
    /// };
    /// let mut first = trainer()?;
    /// assert_eq!(first.step(&x, |x, _| room_for_20(x))?.retries, 2);
    ///
    /// let mut resumed = trainer()?;
    /// resumed.restore_learned(&first.learned());
    /// let report = resumed.step(&x, |x, _| room_for_20(x))?;
    /// assert_eq!((report.retries, report.sizes), (0, vec![16; 4]));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn learned(&self) -> BTreeMap<String, String> {
        let learned = [
            (TRAINING, self.policy.state()),
            (EVALUATION, self.evaluation.state()),
        ];
        let learned = learned.into_iter();
        learned
            .filter_map(|(name, words)| Some((name.to_owned(), words?)))
            .collect()
    }

    /// Goes on from what another run has [learned](Self::learned). It is advice: what is not among these words stays as it
    /// is, and words that a policy cannot read, for instance because another one has written them, are left out and told to
    /// `tracing`.
    pub fn restore_learned(&mut self, learned: &BTreeMap<String, String>) {
        let warn = |restored: Result<()>| {
            if let Err(error) = restored {
                tracing::warn!(%error, "micro-batch sizes are learned anew");
            }
        };
        if let Some(words) = learned.get(TRAINING) {
            warn(self.policy.load_state(words));
        }
        if let Some(words) = learned.get(EVALUATION) {
            warn(self.evaluation.load_state(words));
        }
    }
}

impl<A: Algorithm> AdaptiveTrainer<Fused<A>> {
    /// The optimizer's state and what was learned about memory; see [`Fused::state_dict`].
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom::{AdamW, AdaptiveTrainer, StateDict};
    /// use candle_nn::{linear, VarBuilder, VarMap};
    ///
    /// let varmap = VarMap::new();
    /// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let optimizer = AdamW::new_lr(&varmap, 1e-3)?;
    /// let mut trainer = AdaptiveTrainer::builder(varmap.all_vars(), optimizer).build()?;
    /// # let path = std::env::temp_dir().join(format!("candle-headroom-trainer-{}.safetensors", std::process::id()));
    /// trainer.state_dict()?.save(&path)?;
    /// trainer.load_state_dict(&StateDict::load(&path)?)?;
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Fused::state_dict`].
    pub fn state_dict(&self) -> Result<StateDict> {
        let mut dict = self.optimizer().state_dict()?;
        dict.metadata.extend(self.learned());
        Ok(dict)
    }

    /// Goes on from saved state: the optimizer's, and [what was learned](Self::restore_learned) about memory where it holds
    /// that.
    ///
    /// # Errors
    /// Those of [`Fused::load_state_dict`]; nothing has changed then.
    pub fn load_state_dict(&mut self, dict: &StateDict) -> Result<()> {
        self.optimizer_mut().load_state_dict(dict)?;
        self.restore_learned(&dict.metadata);
        Ok(())
    }
}
