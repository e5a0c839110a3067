use std::fmt;

use crate::batch::Plan;

/// What a trainer believes of memory and why it uses the sizes that it uses; from
/// [`AdaptiveTrainer::explain`](super::AdaptiveTrainer::explain).
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom::{AdaptiveTrainer, Sgd};
///
/// let w = Var::new(&[2f32], &Device::Cpu)?;
/// let trainer = AdaptiveTrainer::builder(vec![w.clone()], Sgd::new_lr(vec![w], 0.1)?).build()?;
/// assert_eq!(trainer.explain().to_string(), "training: using the whole batch: nothing bounds it");
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Of training; `None` for a policy that does not tell.
    pub training: Option<Plan>,
    /// Of evaluation; `None` before the first one.
    pub evaluation: Option<Plan>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.training {
            Some(plan) => write!(f, "training: {plan}")?,
            None => f.write_str("training: its policy does not tell")?,
        }
        match self.evaluation {
            Some(plan) => write!(f, "\nevaluation: {plan}"),
            None => Ok(()),
        }
    }
}
