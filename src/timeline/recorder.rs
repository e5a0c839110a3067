use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use super::bounded::{Thinned, push};
use super::rows::{Mark, MicroRow, Note, Number, PhaseRow, StepRow, Totals};
use crate::batch::{Event, EventKind, Plan, Task, TrainingEvent};
use crate::error::{MemoryReading, Phase};
use crate::incident::IncidentKind;
use crate::output::first_line;

const PHASES: usize = 16_384;
const MICRO_BATCHES: usize = 4096;
const MARKS: usize = 512;
const EVALUATIONS: usize = 1024;
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
    micro_began: Option<f64>,
    running_peak: Option<u64>,
    /// In use when the current batch began.
    used_before: Option<u64>,
    /// The last step, counted from 1. Events of an evaluation belong to it.
    last_step: u64,
    /// The last mark is an exhaustion that may be retried.
    is_pending: bool,
}

/// When a record began.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    instant: Instant,
    pub(super) clock: SystemTime,
}

impl Default for Origin {
    fn default() -> Self {
        Self {
            instant: Instant::now(),
            clock: SystemTime::now(),
        }
    }
}

impl Recorder {
    pub(super) fn now(&self) -> f64 {
        microseconds(self.origin.instant.elapsed())
    }

    /// The beginning and the end of work.
    fn span(&self, began: Instant, elapsed: Duration) -> (f64, f64) {
        let began = began.saturating_duration_since(self.origin.instant);
        let ended = began.saturating_add(elapsed);
        (microseconds(began), microseconds(ended))
    }

    pub(super) fn number(&mut self, name: &str, value: f64) {
        let known = self.numbers.iter().position(|(known, _)| known == name);
        let index = known.unwrap_or(self.numbers.len());
        if !value.is_finite() || index >= NAMES {
            return;
        }
        if known.is_none() {
            self.numbers.push((name.to_owned(), Thinned::default()));
        }
        let (at, count) = (self.now(), 1);
        if let Some((_, series)) = self.numbers.get_mut(index) {
            series.push(Number { at, value, count });
        }
    }

    pub(super) fn note(&mut self, text: &str) {
        let (at, text) = (self.now(), first_line(text).to_owned());
        push(&mut self.notes, Note { at, text }, NOTES);
    }

    pub(super) fn record(&mut self, event: &TrainingEvent<'_>) {
        let TrainingEvent {
            task,
            step,
            plan,
            kind,
        } = *event;
        match kind {
            EventKind::BatchBegan { memory, .. } => {
                if task != Task::Evaluation {
                    self.last_step = step + 1;
                }
                self.used_before = memory.in_use;
                self.micro_ended();
            }
            EventKind::PhaseBegan(_) => {}
            EventKind::PhaseEnded {
                phase,
                began,
                elapsed,
                memory,
                succeeded,
            } => {
                let (began, ended) = self.span(began, elapsed);
                self.phase(PhaseRow {
                    began,
                    ended,
                    step: self.last_step,
                    phase,
                    succeeded,
                    memory,
                });
            }
            EventKind::MicroBatchEnded { micro, completed } => {
                let ended = self.phases.back().map_or(0., |phase| phase.ended);
                let row = MicroRow {
                    began: self.micro_began.unwrap_or(ended),
                    ended,
                    step: self.last_step,
                    first: micro.samples.start,
                    size: completed.size,
                    peak: completed.peak,
                };
                push(&mut self.micro_batches, row, MICRO_BATCHES);
                self.micro_ended();
            }
            EventKind::Exhausted(exhausted) => {
                self.totals.exhaustions += 1;
                let (text, detail) = (exhausted.to_string(), format!("{exhausted:#}"));
                self.mark(task, IncidentKind::Exhausted, &text, Some(detail));
                self.is_pending = true;
                self.micro_ended();
            }
            EventKind::Happened(event) => self.happened(task, event),
            EventKind::BatchEnded {
                began,
                elapsed,
                sizes,
                retries,
                recomputed,
                memory,
                ..
            } => {
                let (began, ended) = self.span(began, elapsed);
                let samples = sizes.iter().sum::<usize>() as u64;
                let fits = plan.and_then(|plan| plan.fits);
                let row = StepRow {
                    began,
                    ended,
                    busy: microseconds(elapsed),
                    steps: 1,
                    last: step + 1,
                    samples,
                    micro_batches: sizes.len() as u64,
                    least: sizes.iter().copied().min().unwrap_or(0),
                    most: sizes.iter().copied().max().unwrap_or(0),
                    retries: retries as u64,
                    in_use: memory.in_use,
                    reserved: memory.reserved,
                    peak: memory.peak,
                    limit: memory.limit,
                    fits: fits.map(|size| samples.min(size as u64)),
                    predicted: plan.and_then(|plan| self.predicted(&plan, samples)),
                    reason: plan.map(|plan| plan.reason.to_string()),
                };
                self.step(task, row, recomputed);
            }
            EventKind::BatchFailed(error) => {
                self.totals.failures += 1;
                // With `RUST_BACKTRACE` set, candle's errors contain a whole backtrace.
                let text = error.to_string();
                self.mark(task, IncidentKind::Failed, first_line(&text), None);
                self.micro_ended();
            }
        }
    }

    fn phase(&mut self, row: PhaseRow) {
        if row.phase == Phase::Optimizer {
            self.running_peak = None;
        }
        self.micro_began.get_or_insert(row.began);
        let MemoryReading { peak, in_use, .. } = row.memory;
        // The reading is the highest since the micro-batch began. It is this phase's peak if it rose during the phase.
        let own = peak.filter(|_| peak > self.running_peak).max(in_use);
        self.running_peak = self.running_peak.max(peak);
        self.totals.phase(&row, own);
        push(&mut self.phases, row, PHASES);
    }

    fn micro_ended(&mut self) {
        self.micro_began = None;
        self.running_peak = None;
    }

    /// The peak of a micro-batch that the policy's plan predicts.
    fn predicted(&self, plan: &Plan, samples: u64) -> Option<u64> {
        let size = plan.using.map_or(samples, |size| samples.min(size as u64));
        let taken = plan.base?.saturating_add(plan.each?.saturating_mul(size));
        Some(self.used_before?.saturating_add(taken))
    }

    fn step(&mut self, task: Task, row: StepRow, recomputed: usize) {
        self.totals.peak = self.totals.peak.max(row.peak);
        match (task, self.steps.rows.last_mut()) {
            (Task::Evaluation, _) => push(&mut self.evaluations, row, EVALUATIONS),
            // The update of accumulated batches belongs to the last of them.
            (_, Some(last)) if row.samples == 0 => {
                last.busy += row.busy;
                last.ended = row.ended;
                last.peak = last.peak.max(row.peak);
                (last.in_use, last.reserved) = (row.in_use, row.reserved);
            }
            (_, None) if row.samples == 0 => {}
            _ => {
                self.totals.steps += 1;
                self.totals.samples += row.samples;
                self.totals.recomputed += recomputed as u64;
                self.steps.push(row);
            }
        }
        self.micro_ended();
    }

    fn happened(&mut self, task: Task, event: &Event) {
        let text = event.to_string();
        match (IncidentKind::from(event), self.marks.back_mut()) {
            // The exhaustion has a mark already; its outcome is the better text.
            (IncidentKind::Retried, Some(last)) if self.is_pending => {
                last.text = labelled(task, &text);
                self.is_pending = false;
            }
            (IncidentKind::Retried, _) => self.mark(task, IncidentKind::Exhausted, &text, None),
            (kind, _) => self.mark(task, kind, &text, None),
        }
    }

    fn mark(&mut self, task: Task, kind: IncidentKind, text: &str, detail: Option<String>) {
        let mark = Mark {
            at: self.now(),
            step: self.last_step,
            kind,
            text: labelled(task, text),
            detail,
        };
        self.totals.marks += 1;
        self.is_pending = false;
        push(&mut self.marks, mark, MARKS);
    }
}

fn labelled(task: Task, text: &str) -> String {
    match task {
        Task::Evaluation => format!("evaluation: {text}"),
        _ => text.to_owned(),
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
