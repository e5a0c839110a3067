//! The Chrome trace format, as described by Google's "Trace Event Format": a JSON object with a list of events, one a line.

use std::io::{self, Write};
use std::time::UNIX_EPOCH;

use serde::Serialize;
use serde_json::{Value, json};

use super::recorder::Recorder;
use super::row::{PhaseRow, StepRow};

/// The rows of the trace viewer, from top to bottom.
const STEPS: u32 = 1;
const MICRO_BATCHES: u32 = 2;
const PHASES: u32 = 3;
const EVALUATIONS: u32 = 4;

/// Times are microseconds with nanoseconds as decimals.
#[derive(Serialize)]
struct Event {
    ph: &'static str,
    name: String,
    pid: u32,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    /// The scope of an instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: Value,
}

impl Event {
    fn new(ph: &'static str, name: &str, tid: u32, at: u64, args: Value) -> Self {
        Self {
            ph,
            name: name.to_owned(),
            pid: std::process::id(),
            tid,
            ts: at as f64 / 1e3,
            dur: None,
            cat: None,
            s: None,
            args,
        }
    }

    fn span(cat: &'static str, name: &str, tid: u32, began: u64, ended: u64, args: Value) -> Self {
        Self {
            dur: Some(ended.saturating_sub(began) as f64 / 1e3),
            cat: Some(cat),
            ..Self::new("X", name, tid, began, args)
        }
    }

    fn instant(name: &str, at: u64, args: Value) -> Self {
        Self {
            cat: Some("incident"),
            s: Some("p"),
            ..Self::new("i", name, STEPS, at, args)
        }
    }

    fn counter(name: &str, at: u64, args: Value) -> Self {
        Self::new("C", name, 0, at, args)
    }

    fn named(row: u32, name: &str) -> Self {
        let what = if row == 0 {
            "process_name"
        } else {
            "thread_name"
        };
        Self::new("M", what, row, 0, json!({ "name": name }))
    }
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

fn events(recorder: &Recorder) -> impl Iterator<Item = Event> {
    let names = [
        (0, "candle-headroom"),
        (STEPS, "steps"),
        (MICRO_BATCHES, "micro-batches"),
        (PHASES, "phases"),
        (EVALUATIONS, "evaluations"),
    ];
    let names = names.into_iter().map(|(row, name)| Event::named(row, name));
    let steps = recorder.steps.rows().iter().map(step);
    let evaluations = recorder.evaluations.iter().map(|row| {
        let name = format!("evaluation {}", row.last);
        let args = sizes(row);
        Event::span("evaluation", &name, EVALUATIONS, row.began, row.ended, args)
    });
    let micro_batches = recorder.micro_batches.iter().map(|row| {
        let name = format!("micro-batch of {}", row.size);
        let args = json!({"step": row.step, "first": row.first, "peak_bytes": row.peak});
        Event::span(
            "micro-batch",
            &name,
            MICRO_BATCHES,
            row.began,
            row.ended,
            args,
        )
    });
    let numbers = recorder.numbers.iter().flat_map(|(name, series)| {
        let rows = series.rows().iter();
        rows.map(move |row| Event::counter(name, row.at, json!({ "value": row.value })))
    });
    let marks = recorder.marks.iter().map(|mark| {
        let args = json!({"step": mark.step, "text": mark.text, "detail": mark.detail});
        Event::instant(&mark.kind.to_string(), mark.at, args)
    });
    let notes = recorder.notes.iter();
    let notes = notes.map(|(at, text)| Event::instant("note", *at, json!({ "text": text })));
    (names.chain(steps).chain(evaluations).chain(micro_batches))
        .chain(recorder.phases.iter().flat_map(phase))
        .chain(numbers.chain(marks).chain(notes))
}

fn step(row: &StepRow) -> Event {
    let name = match row.steps {
        1 => format!("step {}", row.last),
        _ => format!("steps {}–{}", row.last + 1 - row.steps, row.last),
    };
    let mut args = sizes(row);
    args["fits"] = row.planned.and_then(|planned| planned.fits).into();
    args["planned_peak_bytes"] = row.planned.and_then(|planned| planned.peak).into();
    args["why_not_larger"] = row.planned.map(|planned| planned.reason.to_string()).into();
    Event::span("step", &name, STEPS, row.began, row.ended, args)
}

fn sizes(row: &StepRow) -> Value {
    json!({
        "samples": row.samples, "micro_batches": row.micro_batches, "largest": row.most, "retries": row.retries,
        "peak_bytes": row.peak,
    })
}

/// A span, and counters for the memory at its end. A value that is not known has no counter.
fn phase(row: &PhaseRow) -> impl Iterator<Item = Event> {
    let peak = row.memory.peak;
    let args = json!({"step": row.step, "succeeded": row.succeeded, "peak_bytes": peak});
    let name = row.phase.to_string();
    let span = Event::span("phase", &name, PHASES, row.began, row.ended, args);
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
    let counters =
        known.map(move |(name, bytes)| Event::counter(name, ended, json!({ "bytes": bytes })));
    std::iter::once(span).chain(counters)
}
