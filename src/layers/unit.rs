//! What is known of a piece of work: a micro-batch, an update, or a step of a loop of one's own.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::path::Place;
use crate::batch::Task;
use crate::error::Holding;

/// The work that a report is about.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::layers::LayerMemory;
/// use candle_headroom::{DeviceMemory, process_batches};
/// use tracing_subscriber::layer::SubscriberExt;
///
/// let layers = LayerMemory::new(&DeviceMemory::host().open()?);
/// let subscriber = tracing_subscriber::registry().with(layers.layer());
/// let x = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?; // [samples, features]
/// tracing::subscriber::with_default(subscriber, || {
///     process_batches(&x, 8, |x| tracing::trace_span!("model").in_scope(|| x.sqr()))
/// })?;
/// let work = layers.report().work.expect("a micro-batch");
/// assert_eq!((work.step, work.samples), (0, 8));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Work {
    /// The purpose of the batch.
    pub task: Task,
    /// The batch's number within its task, counted from 0.
    pub step: u64,
    /// Samples of the micro-batch; 0 for an update.
    pub samples: usize,
}

impl Work {
    /// A micro-batch of `samples` samples, or an update with 0.
    pub(crate) fn new((task, step, samples): (Task, u64, usize)) -> Self {
        Self {
            task,
            step,
            samples,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Unit {
    /// `None` in a loop of one's own.
    pub(super) work: Option<Work>,
    /// Whose it is: two trainers count their batches from 0 each.
    engine: Option<u64>,
    /// Nobody has said when it begins.
    pub(super) is_guessed: bool,
    pub(super) ledger: Ledger,
    pub(super) stats: Stats,
    /// What is known to be held for the training.
    pub(super) held: Vec<Holding>,
    /// Whether the use of memory is known.
    pub(super) is_measured: bool,
}

impl Unit {
    /// Begins a piece of work, of the engine with this number.
    pub(super) fn begin(
        &mut self,
        work: Option<(u64, Work)>,
        held: Vec<Holding>,
        now: Option<u64>,
    ) {
        (self.engine, self.work) = work.unzip();
        (self.held, self.is_measured) = (held, now.is_some());
        self.is_guessed = false;
        self.ledger.begin(now.unwrap_or(0));
        self.stats.clear();
    }

    /// Whether it tells nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.work.is_none() && self.stats.is_empty()
    }

    /// Whether somebody has said that it is a step.
    pub(super) fn is_said(&self) -> bool {
        !self.is_guessed && !self.is_empty()
    }

    /// Whether a report of the step is about this rather than the `other` one.
    pub(super) fn outdoes(&self, other: &Self) -> bool {
        if self.is_guessed && other.is_said() {
            return false;
        }
        let both = self.work.zip(other.work);
        let is_same_step = self.engine == other.engine
            && both.is_some_and(|(own, other)| (own.task, own.step) == (other.task, other.step));
        let is_higher = self.ledger.peak.bytes > other.ledger.peak.bytes;
        // Without counts it is the last that ran the layers.
        let says_more = !self.is_measured && !self.stats.is_empty();
        !is_same_step || is_higher || says_more
    }
}

/// The calls in one place.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Calls {
    pub(super) count: u64,
    /// Bytes allocated in it and still held at its end, with those of the spans within it; below 0 if it freed more.
    pub(super) held: i64,
    /// The same without the spans within it.
    pub(super) own: i64,
    /// The highest use in a call, above that at its beginning.
    pub(super) highest: u64,
    pub(super) time: Duration,
    pub(super) own_time: Duration,
}

/// By place, in the order in which the first calls ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Stats {
    calls: Vec<(Place, Calls)>,
    /// Where each place is in the list.
    places: HashMap<Place, usize>,
}

impl Stats {
    fn clear(&mut self) {
        self.calls.clear();
        self.places.clear();
    }

    pub(super) fn add(&mut self, place: Place, call: Calls) {
        let next = self.calls.len();
        let at = *self.places.entry(place).or_insert(next);
        let Some((_, calls)) = self.calls.get_mut(at) else {
            return self.calls.push((place, call));
        };
        calls.count += call.count;
        calls.held += call.held;
        calls.own += call.own;
        calls.highest = calls.highest.max(call.highest);
        calls.time += call.time;
        calls.own_time += call.own_time;
    }

    pub(super) fn has(&self, place: Place) -> bool {
        self.places.contains_key(&place)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, &Calls)> {
        self.calls.iter().map(|(place, calls)| (*place, calls))
    }

    fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}
