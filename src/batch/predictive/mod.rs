//! The policy that predicts what fits. `shape` and `shapes` hold what is known about samples of one shape and of all, the largest cost that
//! fits and what failed; `size` follows from it what to use.

mod shape;
mod shapes;
mod size;

use shape::{Room, Shape};
use shapes::{Progress, Shapes};

use super::policy::{BatchPolicy, Completed, Extent, Failed, at_least_one, taken};
use super::recompute::{Plan, Recompute, RecomputeReason, Recomputing, Regions};
use super::{MOST_COST, MemoryModel};
use crate::error::{MemoryReading, Result, invalid};
use crate::memory::pool_bound;

/// Learns what micro-batches take of memory and uses the largest size that fits. Trainers use it by default. Sizes depend on
/// memory alone, never on time.
///
/// - **With a limit, or a GPU whose memory is known,** the first micro-batch is one sample. The next ones are as large as fits
///   by what those before took ([`MemoryModel`]); about five lead to the largest. Where that leads on by less than a quarter, a
///   size that is only likely to fit is tried, at most twice the largest. All of it is work of the batch that is being trained.
///   Less room, such as a lowered limit, reduces the size before the next micro-batch begins; more room is used at once. Other
///   users of a device are looked for before a batch and after a failure.
/// - **After a failure,** or a peak over a soft limit, that the model did not predict, the next size is no larger than the
///   measured peak suggests. The failed size is avoided until there is more room, by a sixteenth. Otherwise, after 128
///   micro-batches have succeeded, half of the way up to it is tried, after as many again half of the rest, at last the size
///   itself. After another failure it is 512 micro-batches, up to 32,768; 16 to 128 if the cause may go away by itself
///   ([`Failed::is_passing`]).
/// - **A resumed run** goes on with the sizes that were saved. It forgets them, for samples of this shape, after three
///   micro-batches in a row that contradict what was learned.
/// - **Speed** has no influence. Where smaller micro-batches are faster, allow no larger ones:
///   [`at_most`](crate::batch::PredictiveBuilder::at_most).
/// - **Without measurements** it begins with the whole batch and halves what fails. Every few batches it tries the next larger
///   size, and grows by at most 5 % or one part at a time until one fails. Within 10 batches after more room has come, it
///   uses at least 0.95 of what fits, at the cost of one failure. While there is not more room, failed tries cost at most a
///   ninth of the work with two micro-batches in a batch, a twenty-fourth with four, and less with more.
///
/// A batch is cut evenly: 100 samples with room for 64 become 50 and 50. Only where it would likely take fewer parts, a size that
/// was never seen runs as it is, which shows whether it does. Samples of different shapes are distinguished by their
/// [cost](crate::batch::Extent::cost), so that longer samples are cut into smaller micro-batches.
///
/// ```
/// use candle_headroom::Predictive;
/// use candle_headroom::batch::{BatchPolicy, Completed, Extent};
///
/// let mut policy = Predictive::default();
/// policy.begin(&Extent::new(128, 128));
/// // A base of 100 bytes and 10 for each sample in 1,100 bytes: room for 100 samples.
/// for _ in 0..8 {
///     let mut completed = Completed::new(policy.size(128));
///     (completed.before, completed.limit) = (Some(0), Some(1100));
///     completed.peak = Some(100 + 10 * completed.size as u64);
///     policy.succeeded(&completed);
/// }
/// assert_eq!(policy.size(128), 64); // 64 + 64
/// ```
#[derive(Debug, Clone, Default)]
pub struct Predictive {
    options: PredictiveBuilder,
    shapes: Shapes,
    recompute: Recompute,
    /// The model has marked regions.
    has_regions: bool,
    /// Samples in the present batch.
    samples: usize,
    room: Option<Room>,
    /// What this process could have of the device in total when it was last asked, in bytes.
    device: Option<u64>,
    start: Start,
    /// Micro-batches until a larger size is tried without measurements.
    wait: usize,
}

/// Whether a micro-batch has finished in this process. The first one also allocates what is kept for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Start {
    /// None has, and nothing was learned before.
    #[default]
    Cold,
    /// None has since a state was loaded. No more room counts than was saved, in bytes: what the first micro-batch will allocate for
    /// good still looks free.
    Resumed(Option<u64>),
    /// One has.
    Warm,
}

impl PredictiveBuilder {
    /// Creates the policy.
    ///
    /// ```
    /// use candle_headroom::Predictive;
    ///
    /// assert!(Predictive::builder().at_most(64).build().is_ok());
    /// assert!(Predictive::builder().at_most(0).build().unwrap_err().is_policy());
    /// ```
    ///
    /// # Errors
    /// If the margin is outside 0 to 0.9, or the largest size is 0 ([`is_policy`](crate::Error::is_policy)).
    pub fn build(self) -> Result<Predictive> {
        if !(0. ..=MOST_MARGIN).contains(&self.margin) {
            return Err(invalid!(
                Policy,
                "`margin` must be in [0, 0.9], got {:?}",
                self.margin
            ));
        }
        at_least_one("the largest size of a micro-batch", self.most)?;
        Ok(Predictive {
            options: self,
            ..Predictive::default()
        })
    }
}

impl Predictive {
    /// Options for a policy that has learned nothing yet.
    ///
    /// ```
    /// use candle_headroom::Predictive;
    /// use candle_headroom::batch::BatchPolicy;
    ///
    /// let policy = Predictive::builder().build()?; // the same as `Predictive::default()`
    /// assert_eq!(policy.size(100), 100); // the whole batch, until memory is measured
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder() -> PredictiveBuilder {
        PredictiveBuilder::default()
    }

    /// Returns what is known about samples of the present shape; sizes are [costs](crate::batch::Extent::cost).
    ///
    /// ```
    /// use candle_headroom::Predictive;
    /// use candle_headroom::batch::{BatchPolicy, Completed};
    ///
    /// let mut policy = Predictive::default();
    /// for size in [1, 1, 4, 8] {
    ///     let mut completed = Completed::new(size);
    ///     (completed.before, completed.limit) = (Some(0), Some(500));
    ///     completed.peak = Some(100 + 10 * size as u64);
    ///     policy.succeeded(&completed);
    /// }
    /// assert_eq!((policy.model().base(), policy.model().largest_seen()), (Some(100), Some(8)));
    /// ```
    pub fn model(&self) -> &MemoryModel {
        &self.present().model
    }

    /// Samples of the present shape, as they are processed now.
    fn present(&self) -> &Shape {
        self.shapes.active.shape(self.is_recomputed())
    }

    fn is_recomputed(&self) -> bool {
        match self.recompute {
            Recompute::Never => false,
            Recompute::Always => self.has_regions,
            Recompute::Auto | Recompute::Measured => self.shapes.active.choice.recomputes(),
        }
    }

    fn derive(&mut self) {
        let recomputes = self.is_recomputed();
        self.shapes.derive(recomputes, self.room);
        let shape = self.shapes.active.shape_mut(recomputes);
        shape.refit(self.room);
    }

    fn see(&mut self, now: &MemoryReading) {
        self.device = pool_bound(now).or(self.device);
        let bound = now.limit.into_iter().chain(self.device).min();
        let left = bound.zip(now.in_use);
        let left = left.map(|(bound, in_use)| bound.saturating_sub(in_use));
        self.room = left.map(|left| self.room_of(left));
    }

    /// What a micro-batch may take where limit and device leave so many bytes.
    fn room_of(&self, left: u64) -> Room {
        let left = match self.start {
            Start::Resumed(Some(saved)) => left.min(saved),
            _ => left,
        };
        Room::new(left, self.options.margin)
    }
}

impl BatchPolicy for Predictive {
    fn size(&self, remaining: usize) -> usize {
        if let Some(probe) = self.probe().filter(|probe| *probe <= remaining) {
            return probe;
        }
        let most = self.options.most;
        match self.largest().filter(|largest| *largest < most) {
            None => most.min(remaining),
            Some(largest) if largest < remaining && self.is_worth_a_look(largest) => largest,
            Some(largest) => {
                let parts = remaining.div_ceil(largest);
                remaining.div_ceil(parts.max(1))
            }
        }
    }

    fn recomputes(&self) -> bool {
        self.shapes.active.choice.recomputes()
    }

    fn set_recompute(&mut self, recompute: Recompute) {
        self.recompute = recompute;
    }

    fn begin(&mut self, batch: &Extent) {
        self.samples = batch.samples;
        self.shapes.select(batch.each().min(MOST_COST));
        if self.recompute == Recompute::Auto && self.has_regions {
            let known = &mut self.shapes.active;
            known.choice.decide(&known.kept, self.room);
        }
        self.derive();
    }

    fn prepare(&mut self, now: &MemoryReading) {
        self.see(now);
        self.derive();
    }

    fn succeeded(&mut self, completed: &Completed) {
        let mut now = MemoryReading::default();
        (now.in_use, now.limit) = (completed.before, completed.limit);
        self.see(&now);
        self.has_regions |= completed.regions != Regions::None;
        let (room, known) = (self.room, &mut self.shapes.active);
        known.choice.succeeded();
        let shape = known.shape_mut(completed.regions == Regions::Recomputed);
        let cost = shape.cost(completed.size);
        let took = taken(completed.peak, completed.before);
        let start = std::mem::replace(&mut self.start, Start::Warm);
        // Where it takes more than it should, the first micro-batch of a resumed run allocated something once.
        let most = shape.model.upper_bound(cost);
        let most = most.filter(|_| matches!(start, Start::Resumed(_)));
        if let Some(bytes) = took.filter(|took| most.is_none_or(|most| *took <= most)) {
            if start != Start::Cold {
                shape.model.count_first();
            }
            shape.model.observe(cost, bytes);
        }
        if completed.is_over_limit() {
            shape.exceeded(cost, took, room, None);
            return;
        }
        let is_blind = shape.is_blind(room);
        shape.succeeded(cost);
        shape.refit(room);
        if is_blind {
            self.wait = self.wait.saturating_sub(1);
            if shape.cap.is_some_and(|cap| cost > cap) {
                shape.set(cost);
                // Only the first shape that finds room speaks for the others: what they have found since is theirs.
                if !shape.is_growing {
                    let recomputes = completed.regions == Regions::Recomputed;
                    let all = self.shapes.all();
                    all.for_each(|known| known.shape_mut(recomputes).is_growing = true);
                }
            }
        }
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        let bytes = &failed.exhausted.bytes;
        self.see(bytes);
        self.has_regions |= failed.regions != Regions::None;
        let (room, known) = (self.room, &mut self.shapes.active);
        let is_refused = failed.size == 1 && failed.regions == Regions::Kept;
        if is_refused {
            known.choice.refuse(room, failed.is_passing);
        }
        let shape = known.shape_mut(failed.regions == Regions::Recomputed);
        let cost = shape.cost(failed.size);
        shape.exceeded(cost, taken(bytes.peak, bytes.in_use), room, Some(failed));
        if shape.is_blind(room) {
            shape.is_growing = false;
            self.await_room(failed.is_passing);
        }
        if is_refused {
            self.derive(); // from what is known of kept samples
        }
    }

    fn plan(&self) -> Option<Plan> {
        let shape = self.present();
        let slope = shape.model.slope();
        let fits = self
            .room
            .and_then(|room| room.fits(&shape.model, shape.each));
        let allowed = Some(self.options.most).filter(|most| *most < usize::MAX);
        let is_on = self.is_recomputed();
        let reason = match self.recompute {
            Recompute::Never | Recompute::Always => RecomputeReason::Asked,
            _ if is_on => RecomputeReason::OneSample,
            _ => RecomputeReason::NoNeed,
        };
        let regions = Recomputing { is_on, reason };
        Some(Plan {
            base: shape.model.base(),
            each: slope.map(|slope| (slope * shape.each as f64) as u64),
            room: self.room.map(|room| room.all),
            fits: fits.map(|fits| fits / shape.each),
            using: self.largest().into_iter().chain(allowed).min(),
            reason: self.reason(),
            regions: self.has_regions.then_some(regions),
            faster: None,
        })
    }

    fn state(&self) -> Option<String> {
        self.shapes.to_json(Progress {
            has_regions: self.has_regions,
            wait: self.wait,
            room: match self.start {
                Start::Resumed(saved) => saved,
                _ => self.room.map(|room| room.all),
            },
        })
    }

    fn load_state(&mut self, state: &str) -> Result<()> {
        let (shapes, progress) = Shapes::from_json(state)?;
        self.shapes = shapes;
        (self.has_regions, self.wait) = (progress.has_regions, progress.wait);
        self.start = match self.shapes.all().any(|known| known.is_known()) {
            true => Start::Resumed(progress.room),
            false => Start::Cold,
        };
        self.room = self.room.map(|room| self.room_of(room.all));
        Ok(())
    }
}

/// The part of the room that is left free by default, and the largest that can be.
const MARGIN: f64 = 0.01;
const MOST_MARGIN: f64 = 0.9;

/// Options of [`Predictive`].
///
/// ```
/// use candle_headroom::Predictive;
/// use candle_headroom::batch::BatchPolicy;
///
/// // A tenth of the room stays free, and a micro-batch has no more than 64 samples.
/// let policy = Predictive::builder().margin(0.1).at_most(64).build()?;
/// assert!(policy.size(1000) <= 64);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use = "call `build()`"]
pub struct PredictiveBuilder {
    margin: f64,
    most: usize,
}

impl Default for PredictiveBuilder {
    fn default() -> Self {
        Self {
            margin: MARGIN,
            most: usize::MAX,
        }
    }
}

impl PredictiveBuilder {
    /// Sets the part of the room to leave free, from 0 to 0.9; 0.01 by default. More is left free where the model is less certain
    /// than that.
    ///
    /// ```
    /// use candle_headroom::Predictive;
    ///
    /// assert!(Predictive::builder().margin(0.1).build().is_ok());
    /// assert!(Predictive::builder().margin(0.95).build().unwrap_err().is_policy());
    /// ```
    pub fn margin(mut self, margin: f64) -> Self {
        self.margin = margin;
        self
    }

    /// Sets the largest size, in samples. It is used as it is, with a smaller rest at the end of the batch.
    ///
    /// ```
    /// use candle_headroom::Predictive;
    /// use candle_headroom::batch::BatchPolicy;
    ///
    /// let policy = Predictive::builder().at_most(64).build()?;
    /// assert_eq!((policy.size(100), policy.size(36)), (64, 36)); // 64 and a rest of 36
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn at_most(mut self, size: usize) -> Self {
        self.most = size;
        self
    }
}
