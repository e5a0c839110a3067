use std::fmt;
use std::time::Duration;

use super::exchange::Exchange;
use super::loss::StepLoss;
use super::recent::Recent;
use crate::batch::{CutCheck, Event, Processed};
use crate::error::Result;
use crate::memory::bytes_text;

/// The result of a step, or of an accumulator's update. `{}` is one line, and `{:#}` adds what was checked of the closure.
///
/// Neither waits for a GPU. They show the newest loss of the trainer that has arrived when they are printed, with the number of its step if that
/// is another one, and `n/a` in the first report that is printed. [`loss`](Self::loss) waits for this step's.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StepReport {
    /// The number of the update, counted from 1; without an update, the number of updates so far.
    pub step: u64,
    /// Number of samples, each counted once; those of this rank.
    pub samples: usize,
    /// Sizes of the finished micro-batches, in order. The same sizes from the same state give the same bits on the CPU.
    pub sizes: Vec<usize>,
    /// Number of micro-batches and updates that did not fit and were tried again.
    pub retries: usize,
    /// Number of samples that were computed again.
    pub recomputed: usize,
    /// Changes of the micro-batch size, and retries.
    pub events: Vec<Event>,
    /// The highest use of memory during the step, the update included, in bytes; `None` without a memory that counts.
    pub peak: Option<u64>,
    /// Whether parameters changed: `Some(false)` if all losses had weight 0 or the optimizer skipped a gradient that is not
    /// finite; `None` if only the device knows, and nothing waited for it.
    pub updated: Option<bool>,
    /// The learning rate of the update, before the factors of groups; `None` if the optimizer does not say.
    pub learning_rate: Option<f64>,
    /// The global norm of the gradients, over all ranks, before clipping and without a loss scale; NaN or infinite if one was not finite.
    /// `None` without an update, for an optimizer that does not compute it (it does for
    /// [`clip_norm`](crate::optim::FusedBuilder::clip_norm), [`skip_non_finite`](crate::optim::FusedBuilder::skip_non_finite) and a loss
    /// scale), and on CUDA, where [`progress`](crate::optim::Fused::progress) waits for it.
    pub gradient_norm: Option<f64>,
    /// How long the caller waited for the batches; `None` if they came from no [`Loader`](crate::data::Loader).
    pub waited: Option<Duration>,
    /// What the ranks of a [`Group`](crate::distributed::Group) did; `None` without one.
    pub exchange: Option<Exchange>,
    /// The loss, on the device until it is read; with a group the mean over all ranks.
    pub loss: StepLoss,
    /// Number of batches in the update.
    pub(super) batches: usize,
    /// The losses of the updates around this one.
    pub(super) recent: Recent,
}

impl StepReport {
    /// Returns the size of the largest micro-batch, in samples.
    pub fn micro_batch(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or_default()
    }

    /// Waits for the device and returns the loss: the weighted mean over all micro-batches, and with a group over all ranks; NaN if all had
    /// weight 0.
    ///
    /// # Errors
    /// candle's, from reading the device.
    pub fn loss(&self) -> Result<f64> {
        Ok(self.loss.read()?)
    }

    /// Returns what was checked of the closure, and found, if a batch was cut for the first time; see
    /// [`AdaptiveTrainer::check_cut`](crate::AdaptiveTrainer::check_cut).
    pub fn cut_check(&self) -> Option<&CutCheck> {
        self.events.iter().rev().find_map(|event| match event {
            Event::CutChecked(check) => Some(check),
            _ => None,
        })
    }

    /// The update is queued: its loss arrives with it.
    pub(super) fn note_loss(&self) {
        self.recent.note(self.step, &self.loss);
    }

    /// Adds what a batch or an update took.
    pub(super) fn extend(&mut self, took: Processed<()>) {
        self.retries += took.retries;
        self.recomputed += took.recomputed;
        self.events.extend(took.events);
        self.peak = self.peak.max(took.peak);
        self.waited = match (self.waited, took.waited) {
            (Some(before), Some(waited)) => Some(before.saturating_add(waited)),
            (before, waited) => before.or(waited),
        };
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
        write!(f, "step {}: loss ", self.step)?;
        match self.recent.newest(self.step, &self.loss) {
            Some((step, loss)) if step == self.step => write!(f, "{loss:.4}")?,
            Some((step, loss)) => write!(f, "{loss:.4} of step {step}")?,
            None => f.write_str("n/a")?,
        }
        write!(
            f,
            ", {} samples in {count} micro-batch{plural} of {at_most}{}",
            self.samples,
            self.micro_batch(),
        )?;
        match self.retries {
            0 => {}
            1 => write!(f, ", 1 retry ({} samples again)", self.recomputed)?,
            retries => write!(f, ", {retries} retries ({} samples again)", self.recomputed)?,
        }
        // What a batch that was read ahead costs is not worth a word.
        if let Some(waited) = self.waited.filter(|waited| waited.as_millis() > 0) {
            write!(f, ", waited {} ms for data", waited.as_millis())?;
        }
        if let Some(exchange) = &self.exchange {
            write!(f, ", {exchange}")?;
        }
        if self.updated == Some(false) {
            f.write_str(", no update")?;
        }
        write!(f, ", peak {}", bytes_text(self.peak))?;
        match self.cut_check().filter(|_| f.alternate()) {
            Some(check) => write!(f, "\n{check}"),
            None => Ok(()),
        }
    }
}
