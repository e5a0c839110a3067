//! The rows of a record, which pages and traces contain as they are. Times are microseconds since its beginning, memory is in bytes,
//! and steps count from 1.

use serde::{Deserialize, Serialize};

use crate::error::{MemoryReading, Phase};
use crate::incident::IncidentKind;

/// A step, or several that were merged.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct StepRow {
    pub(super) began: f64,
    pub(super) ended: f64,
    /// Time within steps, without the caller's work between them.
    pub(super) busy: f64,
    /// Time that the caller waited for batches, before the steps.
    pub(super) waited: Option<f64>,
    pub(super) steps: u64,
    /// The number of the last of them.
    pub(super) last: u64,
    pub(super) samples: u64,
    pub(super) micro_batches: u64,
    /// The sizes of the smallest and of the largest micro-batch.
    pub(super) least: usize,
    pub(super) most: usize,
    pub(super) retries: u64,
    pub(super) in_use: Option<u64>,
    pub(super) reserved: Option<u64>,
    pub(super) peak: Option<u64>,
    pub(super) limit: Option<u64>,
    /// The size of the largest micro-batch that should fit, at most the batch's.
    pub(super) fits: Option<u64>,
    /// The predicted peak of a micro-batch.
    pub(super) predicted: Option<u64>,
    pub(super) reason: Option<String>,
}

impl StepRow {
    pub(super) fn merge(&mut self, next: Self) {
        *self = Self {
            began: self.began,
            busy: self.busy + next.busy,
            waited: [self.waited, next.waited]
                .into_iter()
                .flatten()
                .reduce(|a, b| a + b),
            steps: self.steps + next.steps,
            samples: self.samples + next.samples,
            micro_batches: self.micro_batches + next.micro_batches,
            least: self.least.min(next.least),
            most: self.most.max(next.most),
            retries: self.retries + next.retries,
            in_use: self.in_use.max(next.in_use),
            reserved: self.reserved.max(next.reserved),
            peak: self.peak.max(next.peak),
            ..next
        };
    }
}

/// One phase of a micro-batch, or an update.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PhaseRow {
    pub(super) began: f64,
    pub(super) ended: f64,
    pub(super) step: u64,
    pub(super) phase: Phase,
    pub(super) succeeded: bool,
    pub(super) memory: MemoryReading,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MicroRow {
    pub(super) began: f64,
    pub(super) ended: f64,
    pub(super) step: u64,
    /// The index of its first sample.
    pub(super) first: usize,
    pub(super) size: usize,
    pub(super) peak: Option<u64>,
}

/// An event at one time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) at: f64,
    pub(super) step: u64,
    pub(super) kind: IncidentKind,
    pub(super) text: String,
    /// The long form of an exhaustion.
    pub(super) detail: Option<String>,
}

/// A text of the caller's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) at: f64,
    pub(super) text: String,
}

/// A number of the caller's, or the mean of several.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Number {
    pub(super) at: f64,
    pub(super) value: f64,
    pub(super) count: u64,
}

impl Number {
    pub(super) fn merge(&mut self, next: Self) {
        self.at = next.at;
        self.count += next.count;
        // Halves, and a share before the product, so that huge values stay finite. `next` has at most half of the count.
        let share = next.count as f64 / self.count as f64;
        self.value += (next.value / 2. - self.value / 2.) * (2. * share);
    }
}

/// What held the memory when the use of a step was highest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Layers {
    /// The work, and where its use was highest.
    pub(super) title: String,
    pub(super) peak: Option<u64>,
    pub(super) rows: Vec<LayerRow>,
}

/// A layer, or something else that held memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LayerRow {
    pub(super) name: String,
    pub(super) is_layer: bool,
    pub(super) at_peak: Option<u64>,
    pub(super) held: Option<i64>,
    pub(super) calls: u64,
    /// In microseconds.
    pub(super) time: f64,
}

/// Totals of the whole run, including rows that were dropped.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Totals {
    pub(super) steps: u64,
    pub(super) samples: u64,
    pub(super) samples_retried: u64,
    pub(super) exhaustions: u64,
    pub(super) failures: u64,
    pub(super) marks: u64,
    pub(super) peak: Option<u64>,
    /// In the order in which they first ended.
    pub(super) phases: Vec<PhaseTotal>,
    /// Time of regions that were recomputed in the backward pass that has not ended yet.
    #[serde(skip)]
    within_backward: f64,
}

impl Totals {
    /// Adds a phase. `peak` is the highest use during it.
    pub(super) fn phase(&mut self, row: &PhaseRow, peak: Option<u64>) {
        let (phase, mut time) = (row.phase, row.ended - row.began);
        match phase {
            Phase::Recompute => self.within_backward += time,
            // Told apart from what was recomputed within.
            Phase::Backward => time -= std::mem::take(&mut self.within_backward),
            _ => {}
        }
        let mut totals = self.phases.iter_mut();
        match totals.find(|total| total.phase == phase) {
            Some(total) => {
                total.count += 1;
                total.time += time;
                total.peak = total.peak.max(peak);
            }
            None => self.phases.push(PhaseTotal {
                phase,
                count: 1,
                time,
                peak,
            }),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PhaseTotal {
    pub(super) phase: Phase,
    pub(super) count: u64,
    pub(super) time: f64,
    pub(super) peak: Option<u64>,
}

/// Rows of a run of any length in a list of at most `MOST` rows, which must be even. When the list is full, neighbouring rows are
/// merged in pairs, and each later row holds twice as many as before.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Thinned<R, const MOST: usize> {
    pub(super) rows: Vec<R>,
    /// How often the list was full. Each row of the list holds 2 to this power of pushed rows.
    #[serde(skip)]
    doublings: u32,
    /// How many the last row holds so far.
    #[serde(skip)]
    filled: u64,
}

impl<R, const MOST: usize> Thinned<R, MOST> {
    /// Adds a row. `merge` lets a row absorb the next one.
    pub(super) fn push(&mut self, row: R, merge: impl Fn(&mut R, R)) {
        if self.filled < 1 << self.doublings
            && let Some(last) = self.rows.last_mut()
        {
            self.filled += 1;
            return merge(last, row);
        }
        if self.rows.len() == MOST {
            self.halve(&merge);
            self.doublings += 1;
        }
        self.rows.push(row);
        self.filled = 1;
    }

    /// Merges neighbouring rows in pairs.
    pub(super) fn halve(&mut self, merge: impl Fn(&mut R, R)) {
        let mut rows = std::mem::take(&mut self.rows).into_iter();
        while let Some(mut first) = rows.next() {
            if let Some(next) = rows.next() {
                merge(&mut first, next);
            }
            self.rows.push(first);
        }
    }

    /// Merges rows until there are at most this many, which must not be 0. No more can be added.
    pub(super) fn shorten(&mut self, most: usize, merge: impl Fn(&mut R, R)) {
        while self.rows.len() > most.max(1) {
            self.halve(&merge);
        }
    }
}

/// An update of several ranks, or several that were merged, from the end of the exchange before.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct ExchangeRow {
    pub(super) began: f64,
    /// All ranks end an exchange at the same time.
    pub(super) ended: f64,
    pub(super) updates: u64,
    pub(super) loaded: f64,
    pub(super) computed: f64,
    pub(super) waited: f64,
    pub(super) reduced: f64,
    pub(super) retries: u64,
}

impl ExchangeRow {
    pub(super) fn merge(&mut self, next: Self) {
        *self = Self {
            began: self.began,
            ended: next.ended,
            updates: self.updates + next.updates,
            loaded: self.loaded + next.loaded,
            computed: self.computed + next.computed,
            waited: self.waited + next.waited,
            reduced: self.reduced + next.reduced,
            retries: self.retries + next.retries,
        };
    }
}

/// The updates so far, as many on each rank, and merged alike.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Exchanges {
    pub(super) done: Thinned<ExchangeRow, 1024>,
    /// What happened since the last one; it begins with the first work.
    #[serde(skip)]
    pub(super) running: ExchangeRow,
    /// The ranks have met since the last one.
    #[serde(skip)]
    have_met: bool,
}

impl Exchanges {
    /// Adds a phase. The sum over all ranks ends an exchange.
    pub(super) fn phase(&mut self, row: &PhaseRow) {
        let running = &mut self.running;
        let time = row.ended - row.began;
        match row.phase {
            Phase::Load => running.loaded += time,
            Phase::Wait => {
                running.waited += time;
                self.have_met = row.succeeded;
            }
            Phase::Reduce => running.reduced += time,
            // A part of the backward pass.
            Phase::Recompute => {}
            _ => running.computed += time,
        }
        if row.phase == Phase::Reduce && row.succeeded {
            let next = ExchangeRow {
                began: row.ended,
                ..ExchangeRow::default()
            };
            let have_met = std::mem::take(&mut self.have_met);
            let done = ExchangeRow {
                ended: row.ended,
                updates: u64::from(have_met),
                ..std::mem::replace(running, next)
            };
            match (have_met, self.done.rows.last_mut()) {
                // With a sharded state, each update ends with a second exchange.
                (false, Some(last)) => last.merge(done),
                _ => self.done.push(done, ExchangeRow::merge),
            }
        }
    }
}
