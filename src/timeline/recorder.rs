//! The record of a run: lists of rows with a bound, made of the events of a trainer.

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::rows::{
    ExchangeRow, Exchanges, Layers, Mark, MicroRow, Note, Number, PhaseRow, StepRow, Thinned,
    Totals,
};
use crate::batch::{EventKind, Plan, Task, TrainingEvent};
use crate::error::Phase;
use crate::incident::{Incident, IncidentKind};
use crate::monitor::unix_milliseconds;
use crate::output::{first_line, public};

const NAMES: usize = 8;
const NOTES: usize = 64;
const PHASES: usize = 16_384;
const MICRO_BATCHES: usize = 4096;
const MARKS: usize = 512;
const EVALUATIONS: usize = 1024;

/// The fields that another version lacks are empty.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
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
    #[serde(skip)]
    running: Running,
}

/// What is known of the batch that has not ended.
#[derive(Debug, Clone, Default)]
struct Running {
    /// When the current micro-batch began, and its highest use so far.
    micro_began: Option<f64>,
    peak: Option<u64>,
    /// How long the caller waited for the batch.
    waited: Option<f64>,
    /// In use when the batch began.
    used_before: Option<u64>,
    /// The last step, counted from 1. Events of an evaluation belong to it.
    step: u64,
    /// The last mark is an exhaustion that may be retried.
    is_pending: bool,
}

/// When a record began.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Origin {
    #[serde(skip, default = "Instant::now")]
    instant: Instant,
    pub(super) unix_ms: u64,
    /// The time of a copy, in microseconds since then.
    #[serde(default)]
    copied: Option<f64>,
}

impl Default for Origin {
    fn default() -> Self {
        Self {
            instant: Instant::now(),
            unix_ms: unix_milliseconds(SystemTime::now()),
            copied: None,
        }
    }
}

impl Recorder {
    pub(super) fn now(&self) -> f64 {
        let copied = self.origin.copied;
        copied.unwrap_or_else(|| microseconds(self.origin.instant.elapsed()))
    }

    /// A copy whose time stands still.
    pub(super) fn copy(&self) -> Self {
        let mut copy = self.clone();
        copy.origin.copied = Some(self.now());
        copy
    }

    /// Adds an event, and its incident if it is one.
    pub(super) fn record(&mut self, event: &TrainingEvent<'_>, incident: Option<Incident>) {
        self.rank = self.rank.or(event.rank);
        match event.kind {
            EventKind::BatchBegan { memory, waited, .. } => {
                if event.task != Task::Evaluation {
                    self.running.step = event.step + 1;
                }
                self.running.used_before = memory.in_use;
                self.running.waited = waited.map(microseconds);
                let ended = self.now();
                let began = (ended - self.running.waited.unwrap_or(0.)).max(0.);
                if self.work.is_none() {
                    (self.work, self.exchanges.running.began) = (Some((began, began)), began);
                }
                if waited.is_some() {
                    let row = PhaseRow {
                        began,
                        ended,
                        step: self.running.step,
                        phase: Phase::Load,
                        succeeded: true,
                        memory,
                    };
                    self.phase(row, memory.in_use);
                }
            }
            EventKind::PhaseBegan(_) => return,
            EventKind::PhaseEnded {
                phase,
                began,
                elapsed,
                memory,
                succeeded,
            } => {
                let (began, ended) = self.span(began, elapsed);
                let running = &mut self.running;
                // These are measured apart from micro-batches.
                if matches!(phase, Phase::Wait | Phase::Optimizer) {
                    running.peak = None;
                }
                running.micro_began.get_or_insert(began);
                // The reading is the highest since the micro-batch began. It is this phase's peak if it rose during the phase.
                let own = memory.peak.filter(|_| memory.peak > running.peak);
                running.peak = running.peak.max(memory.peak);
                let row = PhaseRow {
                    began,
                    ended,
                    step: running.step,
                    phase,
                    succeeded,
                    memory,
                };
                return self.phase(row, own.max(memory.in_use));
            }
            EventKind::MicroBatchEnded { micro, completed } => {
                let ended = self.phases.back().map_or(0., |phase| phase.ended);
                let row = MicroRow {
                    began: self.running.micro_began.unwrap_or(ended),
                    ended,
                    step: self.running.step,
                    first: micro.samples.start,
                    size: completed.size,
                    peak: completed.peak,
                };
                push(&mut self.micro_batches, row, MICRO_BATCHES);
            }
            EventKind::Happened(_) => return self.mark(event.task, incident),
            EventKind::Exhausted(_) | EventKind::BatchFailed(_) => self.mark(event.task, incident),
            EventKind::BatchEnded {
                began,
                elapsed,
                sizes,
                retries,
                samples_retried,
                memory,
                ..
            } => {
                let (began, ended) = self.span(began, elapsed);
                let samples = sizes.iter().sum::<usize>() as u64;
                let plan = event.plan;
                let row = StepRow {
                    began,
                    ended,
                    busy: microseconds(elapsed),
                    waited: self.running.waited.take(),
                    steps: 1,
                    last: event.step + 1,
                    samples,
                    micro_batches: sizes.len() as u64,
                    least: sizes.iter().copied().min().unwrap_or(0),
                    most: sizes.iter().copied().max().unwrap_or(0),
                    retries: retries as u64,
                    in_use: memory.in_use,
                    reserved: memory.reserved,
                    peak: memory.peak,
                    limit: memory.limit,
                    fits: plan.and_then(|plan| Some(samples.min(plan.fits? as u64))),
                    predicted: plan.and_then(|plan| self.predicted(&plan, samples)),
                    reason: plan.map(|plan| match plan.regions {
                        Some(regions) => format!("{}, {regions}", plan.reason),
                        None => plan.reason.to_string(),
                    }),
                };
                self.step(event.task, row, samples_retried as u64);
            }
        }
        let now = self.now();
        if let Some((_, ended)) = &mut self.work {
            *ended = now;
        }
        (self.running.micro_began, self.running.peak) = (None, None);
    }

    /// The beginning and the end of work.
    fn span(&self, began: Instant, elapsed: Duration) -> (f64, f64) {
        let began = began.saturating_duration_since(self.origin.instant);
        let ended = began.saturating_add(elapsed);
        (microseconds(began), microseconds(ended))
    }

    /// The peak of a micro-batch that the policy's plan predicts.
    fn predicted(&self, plan: &Plan, samples: u64) -> Option<u64> {
        let size = plan.using.map_or(samples, |size| samples.min(size as u64));
        let taken = plan.base?.saturating_add(plan.each?.saturating_mul(size));
        Some(self.running.used_before?.saturating_add(taken))
    }

    /// Adds a phase. `peak` is the highest use during it.
    pub(super) fn phase(&mut self, row: PhaseRow, peak: Option<u64>) {
        self.totals.phase(&row, peak);
        self.exchanges.phase(&row);
        push(&mut self.phases, row, PHASES);
    }

    fn step(&mut self, task: Task, row: StepRow, samples_retried: u64) {
        self.totals.peak = self.totals.peak.max(row.peak);
        match self.steps.rows.last_mut() {
            _ if task == Task::Evaluation => push(&mut self.evaluations, row, EVALUATIONS),
            _ if row.samples > 0 => {
                self.totals.steps += 1;
                self.totals.samples += row.samples;
                self.totals.samples_retried += samples_retried;
                self.steps.push(row, StepRow::merge);
            }
            // The update of accumulated batches belongs to the last of them.
            Some(last) => {
                last.busy += row.busy;
                last.ended = row.ended;
                last.peak = last.peak.max(row.peak);
                (last.in_use, last.reserved) = (row.in_use, row.reserved);
            }
            None => {}
        }
    }

    fn mark(&mut self, task: Task, incident: Option<Incident>) {
        let Some(incident) = incident else {
            return;
        };
        let text = match task {
            Task::Evaluation => format!("evaluation: {}", incident.text),
            _ => incident.text,
        };
        let is_failure = matches!(incident.kind, IncidentKind::Failed | IncidentKind::Fault);
        self.totals.failures += u64::from(is_failure);
        let was_pending = mem::take(&mut self.running.is_pending);
        let kind = match (incident.kind, self.marks.back_mut()) {
            // The exhaustion has a mark already; its outcome is the better text.
            (IncidentKind::Retried, Some(last)) if was_pending => {
                last.text = text;
                return;
            }
            (IncidentKind::Retried, _) => IncidentKind::Exhausted,
            (kind, _) => kind,
        };
        let is_pending = incident.kind == IncidentKind::Exhausted;
        self.running.is_pending = is_pending;
        self.totals.exhaustions += u64::from(is_pending);
        self.exchanges.running.retries += u64::from(is_pending);
        let exhausted = incident.exhausted.filter(|_| is_pending);
        let mark = Mark {
            at: self.now(),
            step: self.running.step,
            kind,
            text,
            detail: exhausted.map(|exhausted| public(&format!("{exhausted:#}")).into_owned()),
        };
        self.totals.marks += 1;
        push(&mut self.marks, mark, MARKS);
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
        let exchanges = &mut self.exchanges.done;
        exchanges.shorten(most(16_384), ExchangeRow::merge);
        for (_, series) in &mut self.numbers {
            series.shorten(most(2048), Number::merge);
        }
        keep_last(&mut self.evaluations, most(EVALUATIONS));
        keep_last(&mut self.phases, most(PHASES / 2));
        keep_last(&mut self.micro_batches, most(MICRO_BATCHES));
        keep_last(&mut self.marks, most(MARKS));
        keep_last(&mut self.notes, most(NOTES));
        // An incident log has the long form.
        self.marks.iter_mut().for_each(|mark| mark.detail = None);
    }
}

pub(super) fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Appends a row and drops the oldest if there are `most` already.
fn push<R>(rows: &mut VecDeque<R>, row: R, most: usize) {
    if rows.len() >= most {
        rows.pop_front();
    }
    rows.push_back(row);
}

fn keep_last<R>(rows: &mut VecDeque<R>, most: usize) {
    rows.drain(..rows.len().saturating_sub(most));
}
