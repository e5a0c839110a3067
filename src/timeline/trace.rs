//! The Chrome trace format, as described by Google's "Trace Event Format": a JSON object with a list of events, one a line.

use std::time::UNIX_EPOCH;

use serde::Serialize;
use serde_json::{Value, json};

use super::recorder::Recorder;

/// The tracks of the trace viewer, from top to bottom, with the category of their spans.
const STEPS: (u32, &str) = (1, "step");
const MICRO_BATCHES: (u32, &str) = (2, "micro-batch");
const PHASES: (u32, &str) = (3, "phase");
const EVALUATIONS: (u32, &str) = (4, "evaluation");

pub(super) fn write(recorder: &Recorder) -> String {
    let began = recorder.origin.clock.duration_since(UNIX_EPOCH);
    let began = began.unwrap_or_default().as_millis() as u64;
    let producer = concat!("candle-headroom ", env!("CARGO_PKG_VERSION"));
    let other = json!({ "producer": producer, "began_unix_ms": began });
    let first = metadata("process_name", (0, "candle-headroom"));
    let mut text =
        format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[\n{first}");
    let mut add = |event: Value| {
        text += ",\n";
        text += &event.to_string();
    };
    for track in [STEPS, MICRO_BATCHES, PHASES, EVALUATIONS] {
        add(metadata("thread_name", track));
    }
    for row in &recorder.steps.rows {
        let name = match row.steps {
            1 => format!("step {}", row.last),
            _ => format!("steps {}–{}", row.last + 1 - row.steps, row.last),
        };
        add(span(STEPS, name, row));
    }
    for row in &recorder.evaluations {
        add(span(EVALUATIONS, format!("evaluation {}", row.last), row));
    }
    for row in &recorder.micro_batches {
        add(span(
            MICRO_BATCHES,
            format!("micro-batch of {}", row.size),
            row,
        ));
    }
    for row in &recorder.phases {
        add(span(PHASES, row.phase.to_string(), row));
        // A value that is not known has no counter.
        for (name, bytes) in [
            ("in use", row.memory.in_use),
            ("reserved", row.memory.reserved),
            ("limit", row.memory.limit),
            ("peak in micro-batch", row.memory.peak),
        ] {
            if let Some(bytes) = bytes {
                add(counter(name, row.ended, json!({ "bytes": bytes })));
            }
        }
    }
    for (name, series) in &recorder.numbers {
        for row in &series.rows {
            add(counter(name, row.at, json!({ "value": row.value })));
        }
    }
    for mark in &recorder.marks {
        add(instant(mark.kind.to_string(), mark));
    }
    for note in &recorder.notes {
        add(instant("note".to_owned(), note));
    }
    text + "\n]}\n"
}

/// The name of the process or of a track.
fn metadata(what: &str, (tid, name): (u32, &str)) -> Value {
    let args = json!({ "name": name });
    json!({ "ph": "M", "name": what, "pid": std::process::id(), "tid": tid, "ts": 0, "args": args })
}

/// A row with a beginning and an end.
fn span((tid, category): (u32, &str), name: String, row: &impl Serialize) -> Value {
    let args = json!(row);
    let time = |field: &str| args[field].as_f64().unwrap_or_default();
    let (began, elapsed) = (time("began"), time("ended") - time("began"));
    json!({
        "ph": "X", "cat": category, "name": name, "pid": std::process::id(), "tid": tid,
        "ts": began, "dur": elapsed.max(0.), "args": args,
    })
}

/// A row with one time, in the scope of the process.
fn instant(name: String, row: &impl Serialize) -> Value {
    let args = json!(row);
    json!({
        "ph": "i", "s": "p", "cat": "incident", "name": name, "pid": std::process::id(), "tid": STEPS.0,
        "ts": args["at"], "args": args,
    })
}

fn counter(name: &str, at: f64, args: Value) -> Value {
    json!({ "ph": "C", "name": name, "pid": std::process::id(), "tid": 0, "ts": at, "args": args })
}
