use std::fmt;

use crate::batch::Plan;

/// The plans behind a trainer's micro-batch sizes; from [`AdaptiveTrainer::explain`](super::AdaptiveTrainer::explain).
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom::{AdaptiveTrainer, Sgd};
///
/// let w = Var::new(&[2f32], &Device::Cpu)?;
/// let trainer = AdaptiveTrainer::builder(Sgd::builder(vec![w]).build()?).build()?;
/// println!("{}", trainer.explain()); // training: using the whole batch: …
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The plan for training; `None` for a policy without one.
    pub training: Option<Plan>,
    /// The plan for evaluation; `None` before the first evaluation.
    pub evaluation: Option<Plan>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.training {
            Some(plan) => write!(f, "training: {plan}")?,
            None => f.write_str("training: the policy has no plan")?,
        }
        match self.evaluation {
            Some(plan) => write!(f, "\nevaluation: {plan}"),
            None => Ok(()),
        }
    }
}
