//! The policy that predicts.

mod ceiling;
mod explained;
mod fits;
mod pace;
mod regime;
mod saved;
mod shapes;

use std::time::Duration;

use self::regime::{Excess, Regime, Room, own};
use self::shapes::Shapes;
use crate::batch::{BatchPolicy, Completed, Extent, Failed, MOST_COST, MemoryModel, Plan};
use crate::error::{MemoryReading, PolicyError, Result};

/// What is left free of the room, if nothing else is asked for.
const MARGIN: f64 = 0.01;
const MOST_MARGIN: f64 = 0.9;

/// Learns what micro-batches take of memory and goes straight to the largest that fits, or to a smaller one that is as
/// fast. What a trainer uses where it is given no other policy.
///
/// - Where a limit or a GPU bounds it, the first micro-batch is one sample; the next ones are as large as fits by what those
///   before them took ([`MemoryModel`]), some five until the largest is reached. Most of that is certain on a straight line;
///   what is only likely is tried where nothing else leads on, or where a batch would take fewer parts. All of it is work of
///   the batch that is being trained.
/// - A batch is cut evenly: 100 with room for 64 is 50 and 50.
/// - A limit that is lowered, or a device on which others take memory, is met before the next micro-batch begins (others
///   are looked for before a batch and after a failure); what comes back is used at once.
/// - Where the prediction was wrong and something failed or went over a soft limit, the next one is no larger than what was
///   measured says to fit, and that size is left alone until the room has grown, or 128 micro-batches have gone well, then
///   512, up to 32,768. Another process that was the cause is given 16 and no blame.
/// - Where the room is known, half of the settled size is timed, and half of that: the smallest that is slower than the
///   fastest by no more than 2 % is used. All is timed again where larger ones become possible, and where after 4,096
///   micro-batches, later 8,192 and more, twice as many are faster. A GPU is waited for before and after each of the eight
///   micro-batches that are timed of a size. Other times give other sizes, and other sizes other roundings: see
///   [`regardless_of_speed`](Self::regardless_of_speed).
/// - Where nothing is known of memory, it begins with the whole batch, halves what fails, and after 32 micro-batches that
///   went well, later 128 and more, goes half of the way back up.
/// - Samples of different shapes are told apart by their [cost](crate::Batch::cost), so that a longer batch is met by a
///   smaller micro-batch.
///
/// ```
/// use candle_headroom::{BatchPolicy, Completed, Extent, Predictive};
///
/// let mut policy = Predictive::new();
/// policy.begin(&Extent::new(128, 128));
/// // 100 bytes, and 10 a sample, in 1,100: room for 100 samples.
/// let mut sizes = Vec::new();
/// for _ in 0..8 {
///     let size = policy.size(128);
///     let mut completed = Completed::new(size);
///     (completed.before, completed.limit) = (Some(0), Some(1100));
///     completed.peak = Some(100 + 10 * size as u64);
///     policy.succeeded(&completed);
///     sizes.push(policy.size(128));
/// }
/// assert_eq!(sizes.last(), Some(&64)); // 64 + 64
/// ```
#[derive(Debug, Clone)]
pub struct Predictive {
    margin: f64,
    most: usize,
    minds_speed: bool,
    shapes: Shapes,
    /// Samples in the present batch.
    samples: usize,
    /// What a micro-batch may take above what is in use, in bytes.
    room: Option<u64>,
    /// What the program could have of the device in all when it was last looked at, in bytes.
    device: Option<u64>,
    /// Nothing has finished in this process: the first micro-batch makes what is kept for ever.
    is_cold: bool,
    elapsed: Option<Duration>,
    /// That one took far more than an earlier run has learned.
    is_doubted: bool,
}

impl Predictive {
    /// Nothing known, a margin of 1 % of the room, no bound on the size.
    pub fn new() -> Self {
        Self {
            margin: MARGIN,
            most: usize::MAX,
            minds_speed: true,
            shapes: Shapes::new(),
            samples: 0,
            room: None,
            device: None,
            is_cold: true,
            elapsed: None,
            is_doubted: false,
        }
    }

    /// Leaves this part of the room free, or as much as the model is uncertain of where that is more.
    ///
    /// # Errors
    /// [`PolicyError::Margin`] for a number below 0 or above 0.9, or none.
    pub fn margin(mut self, margin: f64) -> Result<Self> {
        if !(0. ..=MOST_MARGIN).contains(&margin) {
            let margin = margin.to_string();
            return Err(PolicyError::Margin { margin }.into());
        }
        self.margin = margin;
        Ok(self)
    }

    /// Never goes above `size` samples; above 1 where `size` is 0. A size that is given is used as it is, with a smaller
    /// rest at the end.
    pub fn at_most(mut self, size: usize) -> Self {
        self.most = size.max(1);
        self
    }

    /// Uses the largest size that fits even if a smaller one is as fast: then sizes depend on memory alone.
    pub fn regardless_of_speed(mut self) -> Self {
        self.minds_speed = false;
        self
    }

    /// What it knows of samples of the present shape; sizes are [costs](crate::Batch::cost).
    pub fn model(&self) -> &MemoryModel {
        &self.shapes.active.model
    }

    fn room(&self) -> Option<Room> {
        self.room.map(|all| Room {
            all,
            usable: (all as f64 * (1. - self.margin)) as u64,
        })
    }

    /// The largest size in use, in samples; `None` for the whole batch.
    fn largest(&self) -> Option<usize> {
        match self.is_cold && self.room.is_some() {
            true => Some(1),
            false => self.shapes.active.samples(),
        }
    }

    /// Whether the whole of `largest` samples is to be run, uneven as that is: a batch would likely take fewer parts, and
    /// one run of more samples than were ever seen makes it certain.
    fn is_worth_a_look(&self, largest: usize) -> bool {
        let Some(room) = self.room() else {
            return false;
        };
        let parts = self.samples.div_ceil(largest);
        parts > 1 && largest < self.most && {
            let fewer = self.samples.div_ceil(parts - 1).min(self.most);
            self.shapes.active.may_fit(largest, fewer, room)
        }
    }

    fn see(&mut self, now: &MemoryReading) {
        if let (Some(free), Some(reserved)) = (now.free, now.reserved) {
            self.device = Some(free.saturating_add(reserved));
        }
        let bound = now.limit.into_iter().chain(self.device).min();
        let room = bound.zip(now.in_use);
        self.room = room.map(|(bound, in_use)| bound.saturating_sub(in_use));
    }
}

impl Default for Predictive {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchPolicy for Predictive {
    fn size(&self, remaining: usize) -> usize {
        match self.largest() {
            Some(largest) if largest < remaining && self.is_worth_a_look(largest) => largest,
            Some(largest) if largest < self.most => {
                let parts = remaining.div_ceil(largest);
                remaining.div_ceil(parts.max(1))
            }
            _ => self.most.min(remaining),
        }
    }

    fn begin(&mut self, batch: &Extent) {
        self.samples = batch.samples;
        let each = batch.each().min(MOST_COST);
        let room = self.room();
        self.shapes.select(each, batch.samples, room);
    }

    fn prepare(&mut self, now: &MemoryReading) {
        self.see(now);
        let room = self.room();
        self.shapes.derive(room);
        self.shapes.active.refit(room);
    }

    fn succeeded(&mut self, completed: &Completed) {
        let mut now = MemoryReading::default();
        (now.in_use, now.limit) = (completed.before, completed.limit);
        self.see(&now);
        let room = self.room();
        let regime = &mut self.shapes.active;
        let cost = regime.cost(completed.size);
        let took = own(completed.peak, completed.before);
        if self.is_cold && took.is_some_and(|took| regime.is_another(cost, took)) {
            if !self.is_doubted {
                self.is_doubted = true;
                return; // it may be what is allocated once: another sample tells
            }
            regime.forget(self.samples);
        }
        // What is allocated once says nothing about a shape that is known from an earlier run.
        if !self.is_cold || regime.model.largest_seen().is_none() {
            regime.learn(cost, completed);
        }
        self.is_cold = false;
        if completed.is_over_limit() {
            regime.exceeded(cost, took, room, Excess::Soft);
            return;
        }
        if self.minds_speed && room.is_some() {
            let seconds = self.elapsed.take().map(|elapsed| elapsed.as_secs_f64());
            regime.pace.record(cost, seconds, regime.each);
        }
        regime.succeeded(cost, room);
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        let bytes = &failed.exhausted.bytes;
        self.see(bytes);
        let room = self.room();
        let regime = &mut self.shapes.active;
        let cost = regime.cost(failed.size);
        let took = own(bytes.peak, bytes.in_use);
        let excess = match failed.is_passing {
            true => Excess::Passing,
            false => Excess::Hard,
        };
        regime.exceeded(cost, took, room, excess);
    }

    fn wants_time(&self) -> bool {
        let Regime { pace, each, .. } = &self.shapes.active;
        self.minds_speed && self.room.is_some() && pace.wants_time(*each)
    }

    fn timed(&mut self, _: &Extent, elapsed: Duration) {
        self.elapsed = Some(elapsed);
    }

    fn plan(&self) -> Option<Plan> {
        Some(self.explained())
    }

    fn state(&self) -> Option<String> {
        Some(self.shapes.to_words())
    }

    fn load_state(&mut self, state: &str) -> Result<()> {
        self.shapes = Shapes::from_words(state)?;
        (self.is_cold, self.is_doubted) = (true, false);
        Ok(())
    }
}
