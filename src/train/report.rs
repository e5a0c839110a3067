//! [`StepReport`], and the losses of the last steps, by which a report is printed without waiting for a GPU.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::loss::StepLoss;
use crate::ByteSize;
use crate::batch::{CutCheck, Event, Processed};
use crate::error::Result;
use crate::memory::Mark;

/// The result of a step, or of an accumulator's update. `{}` is one line, and `{:#}` adds what was checked of the closure.
///
/// Neither waits for a GPU. They show the newest loss of the trainer that has arrived when they are printed, with the number of its step if that
/// is another one, and `n/a` in the first report that is printed. [`loss`](Self::loss) waits for this step's.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::batch::Fixed;
/// use candle_headroom::{AdaptiveTrainer, Sgd};
/// use candle_nn::{Module, VarBuilder, VarMap, linear};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let optimizer = Sgd::builder(&varmap).learning_rate(0.1).build()?;
/// let mut trainer = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(4)?).build()?;
///
/// let batch = Tensor::ones((10, 4), DType::F32, &Device::Cpu)?; // [samples, features]
/// let report = trainer.step(&batch, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
/// assert_eq!((report.step, report.samples, report.retries), (1, 10, 0));
/// assert_eq!((report.sizes.as_slice(), report.micro_batch()), (&[4, 4, 2][..], 4));
/// assert_eq!((report.updated, report.learning_rate), (Some(true), Some(0.1)));
/// println!("{report}"); // step 1: loss …, 10 samples in 3 micro-batches of at most 4
/// # Ok::<(), candle_headroom::Error>(())
/// ```
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
    pub samples_retried: usize,
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
    /// Returns the size of the largest micro-batch, in samples; 0 if none was finished.
    pub fn micro_batch(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or_default()
    }

    /// Waits for the device and returns the loss: the weighted mean over all micro-batches, and with a group over all ranks; NaN if all had
    /// weight 0.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let batch = Tensor::new(&[1f32, 3.], &Device::Cpu)?; // two samples
    /// let report = trainer.step(&batch, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
    /// assert_eq!(report.loss()?, 5.); // (1 + 9) / 2
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// candle's, from reading the device.
    pub fn loss(&self) -> Result<f64> {
        Ok(self.loss.read()?)
    }

    /// Returns what was checked of the closure, and found, if a batch was cut for the first time; see
    /// [`AdaptiveTrainer::check_cut`](crate::AdaptiveTrainer::check_cut).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// use candle_headroom::batch::{CutFinding, Fixed};
    ///
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(2)?).build()?;
    /// let batch = Tensor::new(&[1f32, 3., 5., 7.], &Device::Cpu)?;
    /// let report = trainer.step(&batch, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
    /// let check = report.cut_check().expect("the first batch that was cut");
    /// assert_eq!((check.samples, &check.finding), (2, &CutFinding::Agrees));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
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
        self.samples_retried += took.samples_retried;
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
            1 => write!(f, ", 1 retry ({} samples again)", self.samples_retried)?,
            retries => write!(
                f,
                ", {retries} retries ({} samples again)",
                self.samples_retried
            )?,
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
        if let Some(peak) = self.peak {
            write!(f, ", peak {}", ByteSize(peak))?;
        }
        match self.cut_check().filter(|_| f.alternate()) {
            Some(check) => write!(f, "\n{check}"),
            None => Ok(()),
        }
    }
}

/// Losses that are followed at once. A GPU is seldom further behind.
const MOST: usize = 16;

/// The losses of the last updates, for reports that are printed without waiting for the device. Nothing is followed before the first such
/// report, so that others cost nothing.
#[derive(Clone, Default)]
pub(super) struct Recent(Arc<Mutex<Followed>>);

#[derive(Default)]
struct Followed {
    is_on: bool,
    /// The newest loss that has arrived, with its step.
    newest: Option<(u64, f64)>,
    /// Those of later steps, and where the device has computed them.
    queued: VecDeque<(u64, StepLoss, Mark)>,
}

impl Recent {
    /// An update with this loss is queued.
    pub(super) fn note(&self, step: u64, loss: &StepLoss) {
        let mut followed = self.0.lock();
        let Followed { is_on, queued, .. } = &mut *followed;
        let device = loss.device().filter(|_| *is_on);
        if queued.len() >= MOST {
            // The newest that has arrived is enough.
            let arrived = queued.iter().rposition(|(.., mark)| mark.has_passed());
            queued.drain(..arrived.unwrap_or(0));
        }
        if let Some(mark) = device.filter(|_| queued.len() < MOST).and_then(Mark::new) {
            queued.push_back((step, loss.clone(), mark));
        }
    }

    /// Returns the newest loss that has arrived, with its step; of other devices than GPUs this one, which is waited for.
    pub(super) fn newest(&self, step: u64, loss: &StepLoss) -> Option<(u64, f64)> {
        if !loss.device().is_some_and(|device| device.is_cuda()) {
            return Some((step, loss.read().ok()?));
        }
        let mut followed = self.0.lock();
        followed.is_on = true;
        let queued = &mut followed.queued;
        let arrived = queued.iter().rposition(|(.., mark)| mark.has_passed());
        let arrived = arrived.and_then(|arrived| queued.drain(..=arrived).next_back());
        let read = arrived.and_then(|(step, loss, mark)| Some((step, loss.read_before(&mark)?)));
        followed.newest = read.or(followed.newest);
        followed.newest
    }
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recent").finish_non_exhaustive()
    }
}

/// What ranks did for an update; in [`StepReport::exchange`](crate::StepReport::exchange).
///
/// `{}` is a part of a line: `24 samples on 3 ranks, 120 ms computing, 35 ms waiting for rank 2, 4 ms reducing`. Times are the host's: on a GPU,
/// work that is queued counts as reducing, which waits for it.
///
/// ```
/// # #[cfg(feature = "distributed")] {
/// # use candle_core::{Device, Tensor, Var};
/// # use candle_headroom::{AdaptiveTrainer, Sgd};
/// # let w = Var::new(&[0f32], &Device::Cpu)?;
/// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
/// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
/// use candle_headroom::distributed::Group;
///
/// let group = Group::from_environment()?;
/// let mut trainer = AdaptiveTrainer::builder(optimizer).group(&group).build()?;
/// let report = trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
/// match &report.exchange {
///     Some(exchange) => println!("{} samples, rank {} came last", exchange.samples(), exchange.slowest()),
///     None => assert_eq!(group.size(), 1),
/// }
/// # }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Exchange {
    /// This rank.
    pub rank: usize,
    /// What each rank did, in their order.
    pub ranks: Vec<RankWork>,
    /// How long this rank waited for the status messages of all others.
    pub waited: Duration,
    /// How long the ranks took to add their gradients.
    pub reduced: Duration,
}

/// A rank's part of an update.
///
/// ```
/// use candle_headroom::train::Exchange;
///
/// /// The part of an update's time that this rank waited for others.
/// fn idle(exchange: &Exchange) -> f64 {
///     let own = &exchange.ranks[exchange.rank];
///     let waited = exchange.waited.as_secs_f64();
///     waited / (waited + own.computed.as_secs_f64())
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RankWork {
    /// Number of samples.
    pub samples: usize,
    /// The weight of its losses.
    pub weight: f64,
    /// The time that its samples took, without waiting for data or for other ranks.
    pub computed: Duration,
    /// The time from the exchange before to this one, without waiting for other ranks: with the wait for data, and with the caller's work
    /// between steps.
    pub elapsed: Duration,
}

impl Exchange {
    /// Returns the number of samples of all ranks.
    pub fn samples(&self) -> usize {
        self.ranks.iter().map(|work| work.samples).sum()
    }

    /// Returns how long this rank's own samples took.
    pub fn computed(&self) -> Duration {
        let own = self.ranks.get(self.rank);
        own.map_or(Duration::ZERO, |work| work.computed)
    }

    /// Returns the rank that came last, for which the others waited.
    pub fn slowest(&self) -> usize {
        let ranks = self.ranks.iter().enumerate();
        let slowest = ranks.max_by_key(|(_, work)| work.elapsed);
        slowest.map_or(0, |(rank, _)| rank)
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, ranks) = (self.samples(), self.ranks.len());
        write!(f, "{samples} samples on {ranks} ranks")?;
        write!(f, ", {} ms computing", self.computed().as_millis())?;
        // Less than a millisecond is not worth a word.
        match (self.waited.as_millis(), self.slowest()) {
            (0, _) => {}
            (waited, slowest) if slowest == self.rank => write!(f, ", {waited} ms waiting")?,
            (waited, slowest) => write!(f, ", {waited} ms waiting for rank {slowest}")?,
        }
        match self.reduced.as_millis() {
            0 => Ok(()),
            reduced => write!(f, ", {reduced} ms reducing"),
        }
    }
}

/// How ranks exchange gradients.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Parameters are compared after this many updates.
    pub(super) compare_every: u64,
    /// Updates in which ranks are measured, to divide batches by their speeds; `None` for equal parts.
    pub(super) measured: Option<usize>,
}

/// What the samples of an update took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    pub(super) cost: usize,
    /// Without the wait for data or other ranks.
    pub(super) seconds: f64,
    /// Memory ran out.
    pub(super) is_exhausted: bool,
}
