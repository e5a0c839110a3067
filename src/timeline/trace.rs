//! The Chrome trace format, as described by Google's "Trace Event Format": a JSON object with a list of events, one a line.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::gathered::Gathered;
use super::recorder::Recorder;
use crate::distributed::host;

/// What the events do not tell, so that a trace can be read back.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedRecord {
    /// The number of the process in the events.
    pub(super) process: u64,
    pub(super) host: String,
    /// Without the rows.
    pub(super) record: Recorder,
}

/// The tracks of the trace viewer, from top to bottom, with the category of their spans.
pub(super) const STEPS: (u32, &str) = (1, "step");
pub(super) const MICRO_BATCHES: (u32, &str) = (2, "micro-batch");
pub(super) const PHASES: (u32, &str) = (3, "phase");
pub(super) const EVALUATIONS: (u32, &str) = (4, "evaluation");
const EXCHANGES: (u32, &str) = (5, "exchange");
/// The category of marks and notes.
pub(super) const INSTANTS: &str = "incident";

/// The record of one process.
pub(super) fn write(recorder: &Recorder) -> String {
    let process = match recorder.rank {
        Some(rank) => Process::of_rank(rank, &host::name(), 0.),
        None => Process {
            number: std::process::id().into(),
            name: "candle-headroom".to_owned(),
            host: host::name(),
            shift: 0.,
        },
    };
    let record = process.record(recorder);
    let began = recorder.origin.unix_ms;
    file(process.events(recorder), began, &[record])
}

/// The records of all ranks, each as a process.
pub(super) fn write_all(all: &Gathered) -> String {
    let earliest = all.ranks.iter().map(|rank| rank.shift);
    let earliest = earliest.fold(0., f64::min);
    let processes = all.ranks.iter().enumerate().map(|(number, rank)| {
        let process = Process::of_rank(number, &rank.host, rank.shift - earliest);
        let record = process.record(&rank.recorder);
        (process.events(&rank.recorder), record)
    });
    let (events, records): (Vec<_>, Vec<_>) = processes.unzip();
    let first = all.ranks.first().map(|rank| rank.recorder.origin.unix_ms);
    let began = first.unwrap_or_default() as f64 + earliest / 1e3;
    file(events.concat(), began as u64, &records)
}

fn file(events: Vec<String>, began: u64, records: &[SavedRecord]) -> String {
    let producer = concat!("candle-headroom ", env!("CARGO_PKG_VERSION"));
    let other = json!({ "producer": producer, "began_unix_ms": began, "records": records });
    let events = events.join(",\n");
    format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[\n{events}\n]}}\n")
}

/// Events that belong together in the viewer.
struct Process {
    number: u64,
    name: String,
    host: String,
    /// Added to all times, in microseconds.
    shift: f64,
}

impl Process {
    /// Numbered from 1: viewers take process 0 for the idle one.
    fn of_rank(rank: usize, host: &str, shift: f64) -> Self {
        Self {
            number: rank as u64 + 1,
            name: format!("rank {rank} on {host}"),
            host: host.to_owned(),
            shift,
        }
    }

    fn record(&self, recorder: &Recorder) -> SavedRecord {
        SavedRecord {
            process: self.number,
            host: self.host.clone(),
            record: recorder.without_rows(),
        }
    }

    fn events(&self, recorder: &Recorder) -> Vec<String> {
        let mut events = vec![self.metadata("process_name", (0, &self.name))];
        for track in [STEPS, MICRO_BATCHES, PHASES, EVALUATIONS] {
            events.push(self.metadata("thread_name", track));
        }
        for row in &recorder.steps.rows {
            let name = match row.steps {
                1 => format!("step {}", row.last),
                _ => format!("steps {}–{}", row.last + 1 - row.steps, row.last),
            };
            events.push(self.span(STEPS, name, row));
        }
        for row in &recorder.evaluations {
            events.push(self.span(EVALUATIONS, format!("evaluation {}", row.last), row));
        }
        for row in &recorder.micro_batches {
            let name = format!("micro-batch of {}", row.size);
            events.push(self.span(MICRO_BATCHES, name, row));
        }
        for row in &recorder.phases {
            events.push(self.span(PHASES, row.phase.to_string(), row));
            for (name, bytes) in [
                ("in use", row.memory.in_use),
                ("reserved", row.memory.reserved),
                ("limit", row.memory.limit),
                ("peak in micro-batch", row.memory.peak),
            ] {
                // A value that is not known has no counter.
                let value = bytes.map(|bytes| json!({ "bytes": bytes }));
                events.extend(value.map(|value| self.counter(name, row.ended, value)));
            }
        }
        for (name, series) in &recorder.numbers {
            let rows = series.rows.iter();
            events
                .extend(rows.map(|row| self.counter(name, row.at, json!({ "value": row.value }))));
        }
        let marks = recorder.marks.iter();
        events.extend(marks.map(|mark| self.instant(mark.kind.to_string(), mark)));
        let notes = recorder.notes.iter();
        events.extend(notes.map(|note| self.instant("note".to_owned(), note)));
        events.extend(self.exchanges(recorder));
        events
    }

    /// Waiting and reducing over the whole run, of which only the latest phases are kept.
    fn exchanges(&self, recorder: &Recorder) -> Vec<String> {
        let rows = &recorder.exchanges.done.rows;
        if rows.is_empty() {
            return Vec::new();
        }
        let mut events = vec![self.metadata("thread_name", EXCHANGES)];
        for row in rows {
            let between = row.ended - row.reduced;
            let part = |name: &str, began: f64, ended: f64| {
                let name = match row.updates {
                    1 => name.to_owned(),
                    updates => format!("{name}, {updates} updates"),
                };
                let part = json!({ "began": began, "ended": ended, "row": row });
                self.span(EXCHANGES, name, &part)
            };
            events.push(part("wait", between - row.waited, between));
            events.push(part("reduce", between, row.ended));
        }
        events
    }

    /// The name of the process or of a track.
    fn metadata(&self, what: &str, (tid, name): (u32, &str)) -> String {
        let args = json!({ "name": name });
        self.event(json!({ "ph": "M", "name": what, "tid": tid, "ts": 0, "args": args }))
    }

    /// A row with a beginning and an end.
    fn span(&self, (tid, category): (u32, &str), name: String, row: &impl Serialize) -> String {
        let args = json!(row);
        let time = |field: &str| args[field].as_f64().unwrap_or_default();
        let (began, elapsed) = (time("began"), time("ended") - time("began"));
        self.event(json!({
            "ph": "X", "cat": category, "name": name, "tid": tid, "ts": began + self.shift, "dur": elapsed.max(0.), "args": args,
        }))
    }

    /// A row with one time, in the scope of the process.
    fn instant(&self, name: String, row: &impl Serialize) -> String {
        let args = json!(row);
        let at = args["at"].as_f64().unwrap_or_default() + self.shift;
        self.event(json!({
            "ph": "i", "s": "p", "cat": INSTANTS, "name": name, "tid": STEPS.0, "ts": at, "args": args,
        }))
    }

    fn counter(&self, name: &str, at: f64, args: Value) -> String {
        let at = at + self.shift;
        self.event(json!({ "ph": "C", "name": name, "tid": 0, "ts": at, "args": args }))
    }

    fn event(&self, mut fields: Value) -> String {
        fields["pid"] = self.number.into();
        fields.to_string()
    }
}
