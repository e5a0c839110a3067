use std::fmt;

use super::loss::StepLoss;
use super::window::Window;
use crate::batch::{Event, Outcome};
use crate::memory::Bytes;

/// What one step did. `{}` is one line, and reads the loss.
///
/// ```
/// # use candle_core::{Device, Tensor, Var};
/// # use candle_headroom::{AdaptiveTrainer, Sgd};
/// # let w = Var::new(&[0f32], &Device::Cpu)?;
/// # let optimizer = Sgd::new_lr(vec![w.clone()], 0.1)?;
/// # let mut trainer = AdaptiveTrainer::builder(vec![w.clone()], optimizer).build()?;
/// # let x = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
/// let report = trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
/// assert_eq!((report.samples, report.retries), (3, 0));
/// assert_eq!(report.to_string(), "step 1: loss 4.6667, 3 samples in 1 micro-batch of 3, peak n/a");
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StepReport {
    /// Which update this is, counted from 1; the number of updates so far where none was applied.
    pub step: u64,
    /// Samples in it, each counted once.
    pub samples: usize,
    /// The finished micro-batches' sizes, in order. The same sizes again, from the same state, give the same bits on the CPU.
    pub sizes: Vec<usize>,
    /// How many micro-batches did not fit and were tried again.
    pub retries: usize,
    /// How many samples were computed again because of that.
    pub recomputed: usize,
    /// What happened to the micro-batch size.
    pub events: Vec<Event>,
    /// The highest use of memory during the step, in bytes, the optimizer's included; `None` where the trainer was given no
    /// memory or nobody counts.
    pub peak: Option<u64>,
    /// Whether an update was applied; not, where all losses weighed 0.
    pub updated: bool,
    /// The loss, on the device until it is read.
    pub loss: StepLoss,
}

impl StepReport {
    pub(super) fn new(
        step: u64,
        window: Option<Window>,
        outcome: Outcome,
        peak: Option<u64>,
    ) -> Self {
        let updated = window.is_some();
        Self {
            step,
            samples: outcome.sizes.iter().sum(),
            sizes: outcome.sizes,
            retries: outcome.retries,
            recomputed: outcome.recomputed,
            events: outcome.events,
            peak,
            updated,
            loss: window.unwrap_or_default().loss,
        }
    }

    /// The largest micro-batch of the step, in samples.
    pub fn micro_batch(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or_default()
    }
}

impl fmt::Display for StepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.sizes.len();
        let plural = if count == 1 { "" } else { "es" };
        let at_most = match self.sizes.iter().min() {
            Some(&least) if least < self.micro_batch() => "at most ",
            _ => "",
        };
        write!(
            f,
            "step {}: loss {}, {} samples in {count} micro-batch{plural} of {at_most}{}",
            self.step,
            self.loss,
            self.samples,
            self.micro_batch(),
        )?;
        match self.retries {
            0 => {}
            1 => write!(f, ", 1 retry ({} samples again)", self.recomputed)?,
            retries => write!(f, ", {retries} retries ({} samples again)", self.recomputed)?,
        }
        if !self.updated {
            f.write_str(", no update")?;
        }
        write!(f, ", peak {}", Bytes(self.peak))
    }
}
