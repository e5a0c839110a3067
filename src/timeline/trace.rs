//! The Chrome trace format, as Google's «Trace Event Format» describes it: a JSON object with a list of events, one a line.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use super::recorder::Recorder;
use super::row::PhaseRow;

/// The rows of the trace viewer, from top to bottom.
const STEPS: u32 = 1;
const MICRO_BATCHES: u32 = 2;
const PHASES: u32 = 3;
const EVALUATIONS: u32 = 4;

pub(super) fn write(recorder: &Recorder, to: &mut impl Write) -> io::Result<()> {
    let process = std::process::id();
    let mut events = Events {
        to,
        process,
        is_first: true,
    };
    let began = recorder.began.duration_since(UNIX_EPOCH);
    let began = began.unwrap_or_default().as_millis() as u64;
    write!(
        events.to,
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[",
        json!({"producer": concat!("candle-headroom ", env!("CARGO_PKG_VERSION")), "began_unix_ms": began})
    )?;
    events.name("process_name", 0, "candle-headroom")?;
    for (row, name) in [
        (STEPS, "steps"),
        (MICRO_BATCHES, "micro-batches"),
        (PHASES, "phases"),
        (EVALUATIONS, "evaluations"),
    ] {
        events.name("thread_name", row, name)?;
    }

    for step in recorder.steps.rows() {
        let name = match step.steps {
            1 => format!("step {}", step.last),
            _ => format!("steps {}–{}", step.last + 1 - step.steps, step.last),
        };
        let sizes = json!({
            "samples": step.samples, "micro_batches": step.micro_batches, "largest": step.most,
            "retries": step.retries, "peak_bytes": step.peak,
            "fits": step.planned.and_then(|planned| planned.fits),
            "planned_peak_bytes": step.planned.and_then(|planned| planned.peak),
            "why_not_larger": step.planned.map(|planned| planned.reason.to_string()),
        });
        events.span(STEPS, &name, "step", (step.began, step.ended), sizes)?;
    }
    for evaluation in &recorder.evaluations {
        let sizes = json!({
            "samples": evaluation.samples, "micro_batches": evaluation.micro_batches, "largest": evaluation.most,
            "retries": evaluation.retries, "peak_bytes": evaluation.peak,
        });
        let name = format!("evaluation {}", evaluation.last);
        let times = (evaluation.began, evaluation.ended);
        events.span(EVALUATIONS, &name, "evaluation", times, sizes)?;
    }
    for micro in &recorder.micro_batches {
        let name = format!("micro-batch of {}", micro.size);
        let arguments = json!({"step": micro.step, "first": micro.first, "peak_bytes": micro.peak});
        let times = (micro.began, micro.ended);
        events.span(MICRO_BATCHES, &name, "micro-batch", times, arguments)?;
    }
    for phase in &recorder.phases {
        let arguments = json!({
            "step": phase.step, "succeeded": phase.succeeded, "peak_bytes": phase.memory.peak,
        });
        let times = (phase.began, phase.ended);
        events.span(PHASES, &phase.phase.to_string(), "phase", times, arguments)?;
        events.memory(phase)?;
    }
    for (name, series) in &recorder.numbers {
        for number in series.rows() {
            events.counter(name, number.at, json!({ "value": number.value }))?;
        }
    }
    for mark in &recorder.marks {
        let arguments = json!({"step": mark.step, "text": mark.text, "detail": mark.detail});
        events.write(
            json!({"ph": "i", "s": "p", "name": mark.kind.name(), "cat": "incident", "tid": STEPS, "args": arguments}),
            mark.at,
            None,
        )?;
    }
    events.to.write_all(b"\n]}\n")
}

struct Events<'a, W> {
    to: &'a mut W,
    process: u32,
    is_first: bool,
}

impl<W: Write> Events<'_, W> {
    /// Completes an event by what all have, and writes it. Times are microseconds with the nanoseconds behind the point.
    fn write(&mut self, mut event: Value, at: u64, duration: Option<u64>) -> io::Result<()> {
        event["pid"] = self.process.into();
        event["ts"] = microseconds(at);
        if let Some(duration) = duration {
            event["dur"] = microseconds(duration);
        }
        let comma = if self.is_first { "" } else { "," };
        self.is_first = false;
        write!(self.to, "{comma}\n{event}")
    }

    fn name(&mut self, what: &str, row: u32, name: impl Display) -> io::Result<()> {
        let arguments = json!({ "name": name.to_string() });
        self.write(
            json!({"ph": "M", "name": what, "tid": row, "args": arguments}),
            0,
            None,
        )
    }

    fn span(
        &mut self,
        row: u32,
        name: &str,
        category: &str,
        (began, ended): (u64, u64),
        arguments: Value,
    ) -> io::Result<()> {
        self.write(
            json!({"ph": "X", "name": name, "cat": category, "tid": row, "args": arguments}),
            began,
            Some(ended.saturating_sub(began)),
        )
    }

    fn counter(&mut self, name: &str, at: u64, values: Value) -> io::Result<()> {
        self.write(
            json!({"ph": "C", "name": name, "tid": 0, "args": values}),
            at,
            None,
        )
    }

    /// Counters for what is known at a phase's end. A value that is not known has no counter: a 0 would be a lie.
    fn memory(&mut self, phase: &PhaseRow) -> io::Result<()> {
        for (name, bytes) in [
            ("in use", phase.memory.in_use),
            ("reserved", phase.memory.reserved),
            ("limit", phase.memory.limit),
            ("peak in micro-batch", phase.memory.peak),
        ] {
            if let Some(bytes) = bytes {
                self.counter(name, phase.ended, json!({ "bytes": bytes }))?;
            }
        }
        Ok(())
    }
}

fn microseconds(nanoseconds: u64) -> Value {
    json!(nanoseconds as f64 / 1e3)
}
