//! The record of a run: lists of rows with a bound.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::exchanges::{ExchangeRow, Exchanges};
use super::rows::{Layers, Mark, MicroRow, Note, Number, PhaseRow, StepRow, Totals};
use super::thinned::Thinned;
use crate::monitor::unix_milliseconds;
use crate::output::first_line;

const NAMES: usize = 8;
const NOTES: usize = 64;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Recorder {
    pub(super) origin: Origin,
    /// `None` if this process trains alone.
    pub(super) rank: Option<usize>,
    pub(super) steps: Thinned<StepRow, 4096>,
    /// Separate from steps: they are counted apart and have other sizes.
    pub(super) evaluations: VecDeque<StepRow>,
    pub(super) phases: VecDeque<PhaseRow>,
    pub(super) micro_batches: VecDeque<MicroRow>,
    pub(super) marks: VecDeque<Mark>,
    pub(super) numbers: Vec<(String, Thinned<Number, 2048>)>,
    pub(super) notes: VecDeque<Note>,
    pub(super) totals: Totals,
    pub(super) exchanges: Exchanges,
    pub(super) layers: Option<Layers>,
    /// From the beginning of the first batch to the end of the last.
    pub(super) work: Option<(f64, f64)>,
    /// When the current micro-batch began, and its highest use so far.
    #[serde(skip)]
    pub(super) micro_began: Option<f64>,
    #[serde(skip)]
    pub(super) running_peak: Option<u64>,
    /// How long the caller waited for the current batch.
    #[serde(skip)]
    pub(super) waited: Option<f64>,
    /// In use when the current batch began.
    #[serde(skip)]
    pub(super) used_before: Option<u64>,
    /// The last step, counted from 1. Events of an evaluation belong to it.
    #[serde(skip)]
    pub(super) last_step: u64,
    /// The last mark is an exhaustion that may be retried.
    #[serde(skip)]
    pub(super) is_pending: bool,
}

/// When a record began.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Origin {
    #[serde(skip, default = "Instant::now")]
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

    /// Keeps what one of `ranks` ranks sends for a page of all.
    pub(super) fn shorten(&mut self, ranks: usize) {
        let most = |rows: usize| (rows / ranks.max(1)).max(8);
        self.steps.shorten(most(4096), StepRow::merge);
        self.exchanges
            .done
            .shorten(most(16_384), ExchangeRow::merge);
        for (_, series) in &mut self.numbers {
            series.shorten(most(2048), Number::merge);
        }
        keep_last(&mut self.evaluations, most(1024));
        keep_last(&mut self.phases, most(8192));
        keep_last(&mut self.micro_batches, most(4096));
        keep_last(&mut self.marks, most(512));
        keep_last(&mut self.notes, most(64));
        // An incident log has the long form.
        self.marks.iter_mut().for_each(|mark| mark.detail = None);
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

fn keep_last<R>(rows: &mut VecDeque<R>, most: usize) {
    rows.drain(..rows.len().saturating_sub(most));
}
