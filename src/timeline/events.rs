//! Turns the events of a trainer into rows of the record.

use std::mem;

use super::recorder::{Recorder, microseconds, push};
use super::rows::{Mark, MicroRow, PhaseRow, StepRow};
use crate::batch::{EventKind, Plan, Task, TrainingEvent};
use crate::error::Phase;
use crate::incident::{Incident, IncidentKind};

const PHASES: usize = 16_384;
const MICRO_BATCHES: usize = 4096;
const MARKS: usize = 512;
const EVALUATIONS: usize = 1024;

impl Recorder {
    pub(super) fn record(&mut self, event: &TrainingEvent<'_>, incident: Option<Incident>) {
        self.rank = self.rank.or(event.rank);
        match event.kind {
            EventKind::BatchBegan { memory, waited, .. } => {
                if event.task != Task::Evaluation {
                    self.last_step = event.step + 1;
                }
                self.used_before = memory.in_use;
                self.waited = waited.map(microseconds);
                let began = (self.now() - self.waited.unwrap_or(0.)).max(0.);
                self.work.get_or_insert((began, began));
                self.exchanges.begin(began);
                if let Some(waited) = self.waited {
                    let ended = self.now();
                    let row = PhaseRow {
                        began: (ended - waited).max(0.),
                        ended,
                        step: self.last_step,
                        phase: Phase::Load,
                        succeeded: true,
                        memory,
                    };
                    self.totals.phase(&row, memory.in_use);
                    self.exchanges.phase(&row);
                    push(&mut self.phases, row, PHASES);
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
                // These are measured apart from micro-batches.
                if matches!(phase, Phase::Wait | Phase::Optimizer) {
                    self.running_peak = None;
                }
                self.micro_began.get_or_insert(began);
                // The reading is the highest since the micro-batch began. It is this phase's peak if it rose during the phase.
                let own = memory.peak.filter(|_| memory.peak > self.running_peak);
                self.running_peak = self.running_peak.max(memory.peak);
                let row = PhaseRow {
                    began,
                    ended,
                    step: self.last_step,
                    phase,
                    succeeded,
                    memory,
                };
                self.totals.phase(&row, own.max(memory.in_use));
                self.exchanges.phase(&row);
                push(&mut self.phases, row, PHASES);
                return;
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
            }
            EventKind::Happened(_) => return self.mark(event.task, incident),
            EventKind::Exhausted(_) | EventKind::BatchFailed(_) => self.mark(event.task, incident),
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
                let plan = event.plan;
                let row = StepRow {
                    began,
                    ended,
                    busy: microseconds(elapsed),
                    waited: self.waited.take(),
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
                self.step(event.task, row, recomputed as u64);
            }
        }
        let now = self.now();
        if let Some((_, ended)) = &mut self.work {
            *ended = now;
        }
        self.micro_began = None;
        self.running_peak = None;
    }

    /// The peak of a micro-batch that the policy's plan predicts.
    fn predicted(&self, plan: &Plan, samples: u64) -> Option<u64> {
        let size = plan.using.map_or(samples, |size| samples.min(size as u64));
        let taken = plan.base?.saturating_add(plan.each?.saturating_mul(size));
        Some(self.used_before?.saturating_add(taken))
    }

    fn step(&mut self, task: Task, row: StepRow, recomputed: u64) {
        self.totals.peak = self.totals.peak.max(row.peak);
        match self.steps.rows.last_mut() {
            _ if task == Task::Evaluation => push(&mut self.evaluations, row, EVALUATIONS),
            _ if row.samples > 0 => {
                self.totals.steps += 1;
                self.totals.samples += row.samples;
                self.totals.recomputed += recomputed;
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
        let was_pending = mem::take(&mut self.is_pending);
        let kind = match (incident.kind, self.marks.back_mut()) {
            // The exhaustion has a mark already; its outcome is the better text.
            (IncidentKind::Retried, Some(last)) if was_pending => {
                last.text = text;
                return;
            }
            (IncidentKind::Retried, _) => IncidentKind::Exhausted,
            (kind, _) => kind,
        };
        self.is_pending = incident.kind == IncidentKind::Exhausted;
        self.totals.exhaustions += u64::from(self.is_pending);
        if self.is_pending {
            self.exchanges.retry();
        }
        let exhausted = incident.exhausted.filter(|_| self.is_pending);
        let mark = Mark {
            at: self.now(),
            step: self.last_step,
            kind,
            text,
            detail: exhausted.map(|exhausted| format!("{exhausted:#}")),
        };
        self.totals.marks += 1;
        push(&mut self.marks, mark, MARKS);
    }
}
