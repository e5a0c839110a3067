use std::time::Duration;

use super::builder::{MOST_MARGIN, PredictiveBuilder};
use super::room::Room;
use super::shape::Shape;
use super::shapes::Shapes;
use crate::batch::policy::taken;
use crate::batch::{
    BatchPolicy, Completed, Extent, Failed, MOST_COST, MemoryModel, Plan, Recompute,
    RecomputeReason, Recomputing, Regions,
};
use crate::error::{MemoryReading, PolicyError, Result};

/// Learns what micro-batches take of memory and uses the largest that fits, or a smaller one that is as fast. Trainers use
/// it by default.
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
/// - **A resumed run** takes single samples until one agrees with what was saved. It forgets that, for samples of this shape,
///   after two that took more than twice what the saved line says, or after three in a row that contradict it otherwise.
/// - **Speed:** where the room is known, half of the settled size is timed, and half of that; the smallest that is slower than
///   the fastest by no more than 2 % is used. Everything is timed again if larger sizes become possible, or if twice as many
///   samples are found to be faster after 4,096 micro-batches, later 8,192 and more. Timing never waits for the device. It
///   makes sizes, and with them rounding, differ from run to run; see
///   [`regardless_of_speed`](crate::batch::PredictiveBuilder::regardless_of_speed).
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
    pub(super) options: PredictiveBuilder,
    pub(super) shapes: Shapes,
    recompute: Recompute,
    /// The model has marked regions.
    has_regions: bool,
    /// Samples in the present batch.
    pub(super) samples: usize,
    pub(super) room: Option<Room>,
    /// What this process could have of the device in total when it was last asked, in bytes.
    pub(super) device: Option<u64>,
    /// A micro-batch has finished in this process and agreed with what an earlier run learned. The first one also allocates
    /// what is kept for ever.
    pub(super) is_warm: bool,
    /// The first micro-batch took far more than an earlier run learned.
    is_doubted: bool,
    /// Micro-batches until a larger size is tried without measurements.
    pub(super) wait: usize,
}

/// Micro-batches after a state was loaded until a larger size is tried without measurements.
const FIRST_WAIT: usize = 32;

impl PredictiveBuilder {
    /// Creates the policy.
    ///
    /// # Errors
    /// [`PolicyError::Margin`] for a margin outside 0 to 0.9, [`PolicyError::Zero`] for a largest size of 0.
    pub fn build(self) -> Result<Predictive> {
        let is_too_much = |margin: &f64| !(0. ..=MOST_MARGIN).contains(margin);
        if let Some(margin) = self.margin.filter(is_too_much) {
            return Err(PolicyError::Margin(margin).into());
        }
        PolicyError::at_least_one("the largest size of a micro-batch", self.most)?;
        Ok(Predictive {
            options: self,
            ..Predictive::default()
        })
    }
}

impl Predictive {
    /// Options for a policy that has learned nothing yet.
    pub fn builder() -> PredictiveBuilder {
        PredictiveBuilder::default()
    }

    /// Returns what is known about samples of the present shape; sizes are [costs](crate::batch::Extent::cost).
    pub fn model(&self) -> &MemoryModel {
        &self.shape().model
    }

    /// Samples of the present shape, as they are processed now.
    pub(super) fn shape(&self) -> &Shape {
        self.shapes.active.shape(self.is_recomputed())
    }

    fn is_recomputed(&self) -> bool {
        match self.recompute {
            Recompute::Never => false,
            Recompute::Always => self.has_regions,
            Recompute::Auto => self.shapes.active.choice.recomputes,
        }
    }

    pub(super) fn explained_regions(&self) -> Option<Recomputing> {
        let asked = |is_on| Recomputing {
            is_on,
            reason: RecomputeReason::Asked,
            speed: None,
        };
        self.has_regions.then(|| match self.recompute {
            Recompute::Never => asked(false),
            Recompute::Always => asked(true),
            Recompute::Auto => self.shapes.active.choice.explained(),
        })
    }

    fn derive(&mut self) {
        let recomputes = self.is_recomputed();
        self.shapes.derive(recomputes, self.room);
        self.shapes.active.shape_mut(recomputes).refit(self.room);
    }

    fn see(&mut self, now: &MemoryReading) {
        if let (Some(free), Some(reserved)) = (now.free, now.reserved) {
            self.device = Some(free.saturating_add(reserved));
        }
        let bound = now.limit.into_iter().chain(self.device).min();
        self.room = bound
            .zip(now.in_use)
            .map(|(bound, in_use)| Room::new(bound.saturating_sub(in_use), self.options.margin));
    }
}

impl BatchPolicy for Predictive {
    fn size(&self, remaining: usize) -> usize {
        self.choose(remaining)
    }

    fn recomputes(&self) -> bool {
        self.shapes.active.choice.recomputes
    }

    fn set_recompute(&mut self, recompute: Recompute) {
        self.recompute = recompute;
    }

    fn begin(&mut self, batch: &Extent) {
        self.samples = batch.samples;
        let each = batch.each().min(MOST_COST);
        let samples = batch.samples.min(self.options.most);
        self.shapes.select(each, samples);
        if self.recompute == Recompute::Auto && self.has_regions {
            self.shapes.active.choose(samples, self.room);
        }
        self.derive();
    }

    fn prepare(&mut self, now: &MemoryReading) {
        let before = self.room;
        self.see(now);
        if self.room != before {
            self.derive();
        }
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
        if !self.is_warm && took.is_some_and(|took| shape.is_another(cost, took)) {
            if !self.is_doubted {
                self.is_doubted = true;
                return; // the excess may be allocated once; another sample shows that
            }
            let each = shape.each;
            *shape = Shape::default();
            shape.begin(each, self.samples.min(self.options.most));
        }
        if let Some(bytes) = took {
            if self.is_warm {
                shape.model.count_first();
            }
            shape.model.observe(cost, bytes);
        }
        self.is_warm |= !shape.model.is_contradicted();
        if completed.is_over_limit() {
            shape.exceeded(cost, took, room, None);
            return;
        }
        if self.options.minds_speed && room.is_some() {
            shape.pace.succeeded(cost, shape.each);
        }
        let is_blind = shape.is_blind(room);
        shape.succeeded(cost, room);
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

    fn wants_time(&self) -> bool {
        let (shape, choice) = (self.shape(), &self.shapes.active.choice);
        let may_choose = self.recompute == Recompute::Auto && self.has_regions;
        let is_compared = may_choose && self.options.minds_speed;
        shape.pace.wants_time(shape.each) || is_compared && choice.wants_time(shape)
    }

    fn timed(&mut self, micro_batch: &Extent, regions: Regions, elapsed: Duration) {
        let cost = micro_batch.cost.clamp(1, MOST_COST);
        let known = self.shapes.find(micro_batch.each().min(MOST_COST));
        if let Some(known) = known.filter(|_| !elapsed.is_zero()) {
            let (recomputes, seconds) = (regions == Regions::Recomputed, elapsed.as_secs_f64());
            known.choice.time(recomputes, cost, seconds);
            known.shape_mut(recomputes).pace.time(cost, seconds);
        }
    }

    fn plan(&self) -> Option<Plan> {
        Some(self.explained())
    }

    fn state(&self) -> Option<String> {
        self.shapes.to_json()
    }

    fn load_state(&mut self, state: &str) -> Result<()> {
        self.shapes = Shapes::from_json(state)?;
        (self.is_warm, self.is_doubted, self.wait) = (false, false, FIRST_WAIT);
        Ok(())
    }
}
