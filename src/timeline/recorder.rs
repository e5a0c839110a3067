use std::collections::VecDeque;
use std::time::{Instant, SystemTime};

use super::row::{Mark, MicroRow, Number, PhaseRow, Planned, StepRow};
use super::thin::Thinned;
use super::totals::Totals;
use crate::batch::{Event, EventKind, Task, TrainingEvent};
use crate::error::{MemoryReading, Phase};
use crate::incident::IncidentKind;
use crate::output::first_line;

/// Rows for the whole run; merging leaves at least half as many.
const STEPS: usize = 4096;
const PHASES: usize = 16_384;
const MICRO_BATCHES: usize = 4096;
const MARKS: usize = 512;
const EVALUATIONS: usize = 1024;
const NUMBERS: usize = 2048;
const NAMES: usize = 8;
const NOTES: usize = 64;

#[derive(Debug, Clone)]
pub(super) struct Recorder {
    origin: Instant,
    pub(super) began: SystemTime,
    pub(super) steps: Thinned<StepRow>,
    /// Separate from steps: they are counted apart and have other sizes.
    pub(super) evaluations: VecDeque<StepRow>,
    pub(super) phases: VecDeque<PhaseRow>,
    pub(super) micro_batches: VecDeque<MicroRow>,
    pub(super) marks: VecDeque<Mark>,
    pub(super) numbers: Vec<(String, Thinned<Number>)>,
    /// The time in nanoseconds and the text.
    pub(super) notes: VecDeque<(u64, String)>,
    pub(super) totals: Totals,
    /// When the current micro-batch began, and its highest use so far.
    micro_began: Option<u64>,
    running_peak: Option<u64>,
    /// In use when the current batch began.
    used_before: Option<u64>,
    /// The last step, counted from 1. Events of an evaluation belong to it.
    last_step: u64,
    /// The last mark is an exhaustion that may be retried.
    is_pending: bool,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            origin: Instant::now(),
            began: SystemTime::now(),
            steps: Thinned::new(STEPS),
            evaluations: VecDeque::new(),
            phases: VecDeque::new(),
            micro_batches: VecDeque::new(),
            marks: VecDeque::new(),
            numbers: Vec::new(),
            notes: VecDeque::new(),
            totals: Totals::default(),
            micro_began: None,
            running_peak: None,
            used_before: None,
            last_step: 0,
            is_pending: false,
        }
    }

    /// Nanoseconds since the beginning.
    fn at(&self, time: Instant) -> u64 {
        let since = time.saturating_duration_since(self.origin);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    pub(super) fn number(&mut self, name: &str, value: f64) {
        if !value.is_finite() {
            return;
        }
        let (at, count) = (self.now(), 1);
        let number = Number { at, value, count };
        let names = self.numbers.len();
        match self.numbers.iter_mut().find(|(known, _)| known == name) {
            Some((_, series)) => series.push(number),
            None if names < NAMES => {
                let mut series = Thinned::new(NUMBERS);
                series.push(number);
                self.numbers.push((name.to_owned(), series));
            }
            None => {}
        }
    }

    pub(super) fn note(&mut self, text: &str) {
        let note = (self.now(), first_line(text).to_owned());
        push(&mut self.notes, note, NOTES);
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
                let began = self.at(began);
                let ended = began.saturating_add(elapsed.as_nanos() as u64);
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
                let ended = self.phases.back().map_or(0, |phase| phase.ended);
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
                let busy = elapsed.as_nanos() as u64;
                let samples = sizes.iter().sum::<usize>() as u64;
                self.step(
                    task,
                    StepRow {
                        began: self.at(began),
                        ended: self.at(began).saturating_add(busy),
                        busy,
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
                        planned: plan.map(|plan| Planned::of(&plan, samples, self.used_before)),
                    },
                    recomputed,
                );
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

    fn step(&mut self, task: Task, row: StepRow, recomputed: usize) {
        self.totals.peak = self.totals.peak.max(row.peak);
        match task {
            Task::Evaluation => push(&mut self.evaluations, row, EVALUATIONS),
            // The update of accumulated batches belongs to the last of them.
            _ if row.samples == 0 => {
                if let Some(last) = self.steps.last_mut() {
                    last.busy += row.busy;
                    last.ended = row.ended;
                    last.peak = last.peak.max(row.peak);
                    (last.in_use, last.reserved) = (row.in_use, row.reserved);
                }
            }
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

/// Appends a row and drops the oldest if there are `most` already.
fn push<T>(rows: &mut VecDeque<T>, row: T, most: usize) {
    if rows.len() >= most {
        rows.pop_front();
    }
    rows.push_back(row);
}
