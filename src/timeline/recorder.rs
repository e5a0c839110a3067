//! The record of a run: lists of rows with a bound.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use super::rows::{Mark, MicroRow, Note, Number, PhaseRow, StepRow, Totals};
use crate::monitor::unix_milliseconds;
use crate::output::first_line;

const NAMES: usize = 8;
const NOTES: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Recorder {
    pub(super) origin: Origin,
    pub(super) steps: Thinned<StepRow, 4096>,
    /// Separate from steps: they are counted apart and have other sizes.
    pub(super) evaluations: VecDeque<StepRow>,
    pub(super) phases: VecDeque<PhaseRow>,
    pub(super) micro_batches: VecDeque<MicroRow>,
    pub(super) marks: VecDeque<Mark>,
    pub(super) numbers: Vec<(String, Thinned<Number, 2048>)>,
    pub(super) notes: VecDeque<Note>,
    pub(super) totals: Totals,
    /// When the current micro-batch began, and its highest use so far.
    pub(super) micro_began: Option<f64>,
    pub(super) running_peak: Option<u64>,
    /// How long the caller waited for the current batch.
    pub(super) waited: Option<f64>,
    /// In use when the current batch began.
    pub(super) used_before: Option<u64>,
    /// The last step, counted from 1. Events of an evaluation belong to it.
    pub(super) last_step: u64,
    /// The last mark is an exhaustion that may be retried.
    pub(super) is_pending: bool,
}

/// When a record began.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    instant: Instant,
    pub(super) unix_ms: u64,
}

impl Default for Origin {
    fn default() -> Self {
        Self {
            instant: Instant::now(),
            unix_ms: unix_milliseconds(SystemTime::now()),
        }
    }
}

impl Recorder {
    pub(super) fn now(&self) -> f64 {
        microseconds(self.origin.instant.elapsed())
    }

    /// The beginning and the end of work.
    pub(super) fn span(&self, began: Instant, elapsed: Duration) -> (f64, f64) {
        let began = began.saturating_duration_since(self.origin.instant);
        let ended = began.saturating_add(elapsed);
        (microseconds(began), microseconds(ended))
    }

    pub(super) fn number(&mut self, name: &str, value: f64) {
        if !value.is_finite() {
            return;
        }
        if self.numbers.len() < NAMES && self.numbers.iter().all(|known| known.0 != name) {
            self.numbers.push((name.to_owned(), Thinned::default()));
        }
        let (at, count) = (self.now(), 1);
        if let Some((_, series)) = self.numbers.iter_mut().find(|known| known.0 == name) {
            series.push(Number { at, value, count }, Number::merge);
        }
    }

    pub(super) fn note(&mut self, text: &str) {
        let (at, text) = (self.now(), first_line(text).to_owned());
        push(&mut self.notes, Note { at, text }, NOTES);
    }
}

pub(super) fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Appends a row and drops the oldest if there are `most` already.
pub(super) fn push<R>(rows: &mut VecDeque<R>, row: R, most: usize) {
    if rows.len() >= most {
        rows.pop_front();
    }
    rows.push_back(row);
}

/// Rows of a run of any length in a list of at most `MOST` rows, which must be even. When the list is full, neighbouring rows are
/// merged in pairs, and each later row holds twice as many as before.
#[derive(Debug, Clone, Default)]
pub(super) struct Thinned<R, const MOST: usize> {
    pub(super) rows: Vec<R>,
    /// How often the list was full. Each row of the list holds 2 to this power of pushed rows.
    doublings: u32,
    /// How many the last row holds so far.
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
            let mut rows = std::mem::take(&mut self.rows).into_iter();
            while let Some(mut first) = rows.next() {
                if let Some(next) = rows.next() {
                    merge(&mut first, next);
                }
                self.rows.push(first);
            }
            self.doublings += 1;
        }
        self.rows.push(row);
        self.filled = 1;
    }
}
