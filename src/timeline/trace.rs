//! The Chrome trace format, as described by Google's "Trace Event Format": a JSON object with a list of events, one a line.

use std::io::{self, Write};
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use super::recorder::Recorder;
use super::row::{PhaseRow, StepRow};

/// The rows of the trace viewer, from top to bottom, with the category of their spans.
const STEPS: (u32, &str) = (1, "step");
const MICRO_BATCHES: (u32, &str) = (2, "micro-batch");
const PHASES: (u32, &str) = (3, "phase");
const EVALUATIONS: (u32, &str) = (4, "evaluation");

/// An event; `tid` is its row. Times are microseconds with nanoseconds as decimals.
fn event(ph: &str, name: &str, tid: u32, at: u64, args: Value) -> Value {
    let (pid, ts) = (std::process::id(), at as f64 / 1e3);
    json!({ "ph": ph, "name": name, "pid": pid, "tid": tid, "ts": ts, "args": args })
}

fn span(row: (u32, &str), name: &str, began: u64, ended: u64, args: Value) -> Value {
    let mut span = event("X", name, row.0, began, args);
    span["dur"] = (ended.saturating_sub(began) as f64 / 1e3).into();
    span["cat"] = row.1.into();
    span
}

/// An instant in the scope of the process.
fn instant(name: &str, at: u64, args: Value) -> Value {
    let mut instant = event("i", name, STEPS.0, at, args);
    instant["cat"] = "incident".into();
    instant["s"] = "p".into();
    instant
}

fn counter(name: &str, at: u64, args: Value) -> Value {
    event("C", name, 0, at, args)
}

pub(super) fn write(recorder: &Recorder, to: &mut impl Write) -> io::Result<()> {
    let began = recorder.began.duration_since(UNIX_EPOCH);
    let began = began.unwrap_or_default().as_millis() as u64;
    let producer = concat!("candle-headroom ", env!("CARGO_PKG_VERSION"));
    let other = json!({ "producer": producer, "began_unix_ms": began });
    write!(
        to,
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":["
    )?;
    for (index, event) in events(recorder).enumerate() {
        to.write_all(if index == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *to, &event)?;
    }
    to.write_all(b"\n]}\n")
}

fn events(recorder: &Recorder) -> impl Iterator<Item = Value> {
    let names = [
        ("process_name", 0, "candle-headroom"),
        ("thread_name", STEPS.0, "steps"),
        ("thread_name", MICRO_BATCHES.0, "micro-batches"),
        ("thread_name", PHASES.0, "phases"),
        ("thread_name", EVALUATIONS.0, "evaluations"),
    ];
    let names = names.into_iter();
    let names = names.map(|(what, row, name)| event("M", what, row, 0, json!({ "name": name })));
    let steps = recorder.steps.rows().iter().map(step);
    let evaluations = recorder.evaluations.iter().map(|row| {
        let name = format!("evaluation {}", row.last);
        let args = sizes(row);
        span(EVALUATIONS, &name, row.began, row.ended, args)
    });
    let micro_batches = recorder.micro_batches.iter().map(|row| {
        let name = format!("micro-batch of {}", row.size);
        let args = json!({"step": row.step, "first": row.first, "peak_bytes": row.peak});
        span(MICRO_BATCHES, &name, row.began, row.ended, args)
    });
    let numbers = recorder.numbers.iter().flat_map(|(name, series)| {
        let rows = series.rows().iter();
        rows.map(move |row| counter(name, row.at, json!({ "value": row.value })))
    });
    let marks = recorder.marks.iter().map(|mark| {
        let args = json!({"step": mark.step, "text": mark.text, "detail": mark.detail});
        instant(&mark.kind.to_string(), mark.at, args)
    });
    let notes = recorder.notes.iter();
    let notes = notes.map(|(at, text)| instant("note", *at, json!({ "text": text })));
    (names.chain(steps).chain(evaluations).chain(micro_batches))
        .chain(recorder.phases.iter().flat_map(phase))
        .chain(numbers.chain(marks).chain(notes))
}

fn step(row: &StepRow) -> Value {
    let name = match row.steps {
        1 => format!("step {}", row.last),
        _ => format!("steps {}–{}", row.last + 1 - row.steps, row.last),
    };
    let mut args = sizes(row);
    args["fits"] = row.planned.and_then(|planned| planned.fits).into();
    args["planned_peak_bytes"] = row.planned.and_then(|planned| planned.peak).into();
    args["why_not_larger"] = row.planned.map(|planned| planned.reason.to_string()).into();
    span(STEPS, &name, row.began, row.ended, args)
}

fn sizes(row: &StepRow) -> Value {
    json!({
        "samples": row.samples, "micro_batches": row.micro_batches, "largest": row.most, "retries": row.retries,
        "peak_bytes": row.peak,
    })
}

/// A span, and counters for the memory at its end. A value that is not known has no counter.
fn phase(row: &PhaseRow) -> impl Iterator<Item = Value> {
    let peak = row.memory.peak;
    let args = json!({"step": row.step, "succeeded": row.succeeded, "peak_bytes": peak});
    let name = row.phase.to_string();
    let span = span(PHASES, &name, row.began, row.ended, args);
    let memory = [
        ("in use", row.memory.in_use),
        ("reserved", row.memory.reserved),
        ("limit", row.memory.limit),
        ("peak in micro-batch", peak),
    ];
    let ended = row.ended;
    let known = memory
        .into_iter()
        .filter_map(|(name, bytes)| Some((name, bytes?)));
    let counters = known.map(move |(name, bytes)| counter(name, ended, json!({ "bytes": bytes })));
    std::iter::once(span).chain(counters)
}
