//! The Chrome trace format, as described by Google's "Trace Event Format": a JSON object with a list of events, one a line.

use serde::Serialize;
use serde_json::{Value, json};

use super::recorder::Recorder;

/// The tracks of the trace viewer, from top to bottom, with the category of their spans.
const STEPS: (u32, &str) = (1, "step");
const MICRO_BATCHES: (u32, &str) = (2, "micro-batch");
const PHASES: (u32, &str) = (3, "phase");
const EVALUATIONS: (u32, &str) = (4, "evaluation");

pub(super) fn write(recorder: &Recorder) -> String {
    let mut events = vec![metadata("process_name", (0, "candle-headroom"))];
    for track in [STEPS, MICRO_BATCHES, PHASES, EVALUATIONS] {
        events.push(metadata("thread_name", track));
    }
    for row in &recorder.steps.rows {
        let name = match row.steps {
            1 => format!("step {}", row.last),
            _ => format!("steps {}–{}", row.last + 1 - row.steps, row.last),
        };
        events.push(span(STEPS, name, row));
    }
    for row in &recorder.evaluations {
        events.push(span(EVALUATIONS, format!("evaluation {}", row.last), row));
    }
    for row in &recorder.micro_batches {
        let name = format!("micro-batch of {}", row.size);
        events.push(span(MICRO_BATCHES, name, row));
    }
    for row in &recorder.phases {
        events.push(span(PHASES, row.phase.to_string(), row));
        for (name, bytes) in [
            ("in use", row.memory.in_use),
            ("reserved", row.memory.reserved),
            ("limit", row.memory.limit),
            ("peak in micro-batch", row.memory.peak),
        ] {
            // A value that is not known has no counter.
            events.extend(bytes.map(|bytes| counter(name, row.ended, json!({ "bytes": bytes }))));
        }
    }
    for (name, series) in &recorder.numbers {
        let rows = series.rows.iter();
        events.extend(rows.map(|row| counter(name, row.at, json!({ "value": row.value }))));
    }
    let marks = recorder.marks.iter();
    events.extend(marks.map(|mark| instant(mark.kind.to_string(), mark)));
    let notes = recorder.notes.iter();
    events.extend(notes.map(|note| instant("note".to_owned(), note)));
    let producer = concat!("candle-headroom ", env!("CARGO_PKG_VERSION"));
    let other = json!({ "producer": producer, "began_unix_ms": recorder.origin.unix_ms });
    let events = events.join(",\n");
    format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[\n{events}\n]}}\n")
}

/// The name of the process or of a track.
fn metadata(what: &str, (tid, name): (u32, &str)) -> String {
    let args = json!({ "name": name });
    event(json!({ "ph": "M", "name": what, "tid": tid, "ts": 0, "args": args }))
}

/// A row with a beginning and an end.
fn span((tid, category): (u32, &str), name: String, row: &impl Serialize) -> String {
    let args = json!(row);
    let time = |field: &str| args[field].as_f64().unwrap_or_default();
    let (began, elapsed) = (time("began"), time("ended") - time("began"));
    event(json!({
        "ph": "X", "cat": category, "name": name, "tid": tid, "ts": began, "dur": elapsed.max(0.), "args": args,
    }))
}

/// A row with one time, in the scope of the process.
fn instant(name: String, row: &impl Serialize) -> String {
    let args = json!(row);
    event(json!({
        "ph": "i", "s": "p", "cat": "incident", "name": name, "tid": STEPS.0, "ts": args["at"], "args": args,
    }))
}

fn counter(name: &str, at: f64, args: Value) -> String {
    event(json!({ "ph": "C", "name": name, "tid": 0, "ts": at, "args": args }))
}

fn event(mut fields: Value) -> String {
    fields["pid"] = std::process::id().into();
    fields.to_string()
}
