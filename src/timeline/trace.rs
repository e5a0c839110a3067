//! The Chrome trace format, as described by Google's "Trace Event Format": a JSON object with a list of events, one a line. Beside the
//! events, for viewers, it holds the records themselves, so that a trace can be read back.

use std::io::{self, Write};
use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::page;
use super::ranks::Gathered;
use super::recorder::Recorder;
use crate::error::{OutputError, Result};
use crate::host;
use crate::output::{read, save};

/// The record of one process.
#[derive(Debug, Serialize, Deserialize)]
struct SavedRecord {
    host: String,
    /// Another name than in the first traces, whose records were without rows.
    recorder: Recorder,
}

/// The tracks of the trace viewer, from top to bottom, with the category of their spans.
const STEPS: (u32, &str) = (1, "step");
const MICRO_BATCHES: (u32, &str) = (2, "micro-batch");
const PHASES: (u32, &str) = (3, "phase");
const EVALUATIONS: (u32, &str) = (4, "evaluation");
const EXCHANGES: (u32, &str) = (5, "exchange");

/// The record of one process.
pub(super) fn write(recorder: &Recorder) -> String {
    let process = Process::new(recorder.rank, &host::name(), recorder, 0.);
    file(vec![process], recorder.origin.unix_ms)
}

/// The records of all ranks, each as a process.
pub(super) fn write_all(all: &Gathered) -> String {
    let earliest = all.ranks.iter().map(|rank| rank.shift);
    let earliest = earliest.fold(0., f64::min);
    let ranks = all.ranks.iter().zip(&all.times.ranks).enumerate();
    let processes = ranks.map(|(number, (rank, time))| {
        let shift = rank.shift - earliest;
        Process::new(Some(number), &time.host, &rank.recorder, shift)
    });
    let first = all.ranks.first().map(|rank| rank.recorder.origin.unix_ms);
    let began = first.unwrap_or_default() as f64 + earliest / 1e3;
    file(processes.collect(), began as u64)
}

fn file(processes: Vec<Process>, began: u64) -> String {
    let producer = concat!("candle-headroom ", env!("CARGO_PKG_VERSION"));
    let processes = processes.into_iter().map(|one| (one.events, one.saved));
    let (events, records): (Vec<_>, Vec<_>) = processes.unzip();
    let other = json!({ "producer": producer, "began_unix_ms": began, "records": records });
    let events = events.concat().join(",\n");
    format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[\n{events}\n]}}\n")
}

/// Events that belong together in the viewer.
struct Process {
    number: u64,
    saved: SavedRecord,
    /// Added to all times, in microseconds.
    shift: f64,
    events: Vec<String>,
}

impl Process {
    fn new(rank: Option<usize>, host: &str, recorder: &Recorder, shift: f64) -> Self {
        let (number, name) = match rank {
            // Numbered from 1: viewers take process 0 for the idle one.
            Some(rank) => (rank as u64 + 1, format!("rank {rank} on {host}")),
            None => (std::process::id().into(), "candle-headroom".to_owned()),
        };
        let mut process = Self {
            number,
            saved: SavedRecord {
                host: host.to_owned(),
                recorder: recorder.clone(),
            },
            shift,
            events: Vec::new(),
        };
        process.metadata("process_name", (0, &name));
        for track in [STEPS, MICRO_BATCHES, PHASES, EVALUATIONS] {
            process.metadata("thread_name", track);
        }
        process.rows(recorder);
        process.exchanges(recorder);
        process
    }

    fn rows(&mut self, recorder: &Recorder) {
        for row in &recorder.steps.rows {
            let name = match row.steps {
                1 => format!("step {}", row.last),
                _ => format!("steps {}–{}", row.last + 1 - row.steps, row.last),
            };
            self.span(STEPS, &name, row);
        }
        for row in &recorder.evaluations {
            self.span(EVALUATIONS, &format!("evaluation {}", row.last), row);
        }
        for row in &recorder.micro_batches {
            self.span(MICRO_BATCHES, &format!("micro-batch of {}", row.size), row);
        }
        for row in &recorder.phases {
            self.span(PHASES, &row.phase.to_string(), row);
            for (name, bytes) in [
                ("in use", row.memory.in_use),
                ("reserved", row.memory.reserved),
                ("limit", row.memory.limit),
                ("peak in micro-batch", row.memory.peak),
            ] {
                // A value that is not known has no counter.
                if let Some(bytes) = bytes {
                    self.counter(name, row.ended, json!({ "bytes": bytes }));
                }
            }
        }
        for (name, series) in &recorder.numbers {
            for row in &series.rows {
                self.counter(name, row.at, json!({ "value": row.value }));
            }
        }
        for mark in &recorder.marks {
            self.instant(&mark.kind.to_string(), mark);
        }
        for note in &recorder.notes {
            self.instant("note", note);
        }
    }

    /// Waiting and reducing over the whole run, of which only the latest phases are kept.
    fn exchanges(&mut self, recorder: &Recorder) {
        let rows = &recorder.exchanges.done.rows;
        if !rows.is_empty() {
            self.metadata("thread_name", EXCHANGES);
        }
        for row in rows {
            let between = row.ended - row.reduced;
            let wait = ("wait", between - row.waited, between);
            for (name, began, ended) in [wait, ("reduce", between, row.ended)] {
                let name = match row.updates {
                    1 => name.to_owned(),
                    updates => format!("{name}, {updates} updates"),
                };
                let part = json!({ "began": began, "ended": ended, "row": row });
                self.span(EXCHANGES, &name, &part);
            }
        }
    }

    /// The name of the process or of a track.
    fn metadata(&mut self, what: &str, (tid, name): (u32, &str)) {
        let args = json!({ "name": name });
        self.event(json!({ "ph": "M", "name": what, "tid": tid, "ts": 0, "args": args }));
    }

    /// A row with a beginning and an end.
    fn span(&mut self, (tid, category): (u32, &str), name: &str, row: &impl Serialize) {
        let args = json!(row);
        let time = |field: &str| args[field].as_f64().unwrap_or_default();
        let (began, elapsed) = (time("began"), time("ended") - time("began"));
        self.event(json!({
            "ph": "X", "cat": category, "name": name, "tid": tid, "ts": began + self.shift, "dur": elapsed.max(0.), "args": args,
        }));
    }

    /// A row with one time, in the scope of the process.
    fn instant(&mut self, name: &str, row: &impl Serialize) {
        let args = json!(row);
        let at = args["at"].as_f64().unwrap_or_default() + self.shift;
        self.event(json!({
            "ph": "i", "s": "p", "cat": "incident", "name": name, "tid": STEPS.0, "ts": at, "args": args,
        }));
    }

    fn counter(&mut self, name: &str, at: f64, args: Value) {
        let at = at + self.shift;
        self.event(json!({ "ph": "C", "name": name, "tid": 0, "ts": at, "args": args }));
    }

    fn event(&mut self, mut fields: Value) {
        fields["pid"] = self.number.into();
        self.events.push(fields.to_string());
    }
}

/// A trace that a [`Timeline`](super::Timeline) wrote, read back from its file to be written as a page.
///
/// The page is that of [`save_page`](super::Timeline::save_page) at the time when the trace was written. That of a trace of several ranks has
/// the lanes of all, and rank 0's record as it was shortened for the trace.
///
/// ```
/// use candle_headroom::Timeline;
/// use candle_headroom::timeline::SavedTrace;
///
/// # let temporary = tempfile::tempdir().unwrap();
/// # let folder = temporary.path();
/// Timeline::new().save_trace(folder.join("run.json"))?;
/// SavedTrace::read(folder.join("run.json"))?.save_page("my run", folder.join("run.html"))?;
/// assert!(folder.join("run.html").exists());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct SavedTrace {
    /// Of several, in the order of ranks.
    recorders: Vec<Recorder>,
    hosts: Vec<String>,
}

/// The parts of the file that are read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trace {
    other_data: Other,
    /// They are there in a whole trace.
    #[serde(rename = "traceEvents")]
    _events: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct Other {
    records: Vec<SavedRecord>,
}

impl SavedTrace {
    /// Reads the file of a trace.
    ///
    /// ```
    /// use candle_headroom::timeline::SavedTrace;
    /// use candle_headroom::{Error, Timeline};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// Timeline::new().save_trace(folder.join("run.json"))?;
    /// assert!(SavedTrace::read(folder.join("run.json")).is_ok());
    ///
    /// std::fs::write(folder.join("other.json"), "{}").unwrap();
    /// let error = SavedTrace::read(folder.join("other.json")).unwrap_err();
    /// assert!(matches!(error, Error::Output(_)));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutputError`] with the path if the file cannot be read, or is not a whole trace that this crate wrote.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let parsed = read(path).and_then(|bytes| Self::parse(&bytes));
        parsed.map_err(|error| OutputError::reading(path, &error).into())
    }

    fn parse(bytes: &[u8]) -> io::Result<Self> {
        let invalid = |error: serde_json::Error| {
            let reason = format!("not a whole trace of a `Timeline`: {error}");
            io::Error::new(io::ErrorKind::InvalidData, reason)
        };
        let trace: Trace = serde_json::from_slice(bytes).map_err(invalid)?;
        let records = trace.other_data.records.into_iter();
        let records = records.map(|one| (one.recorder, one.host));
        let (recorders, hosts) = records.unzip();
        Ok(Self { recorders, hosts })
    }

    /// Writes the page; `title` is its heading.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::timeline::SavedTrace;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("run.json");
    /// Timeline::new().save_trace(&path)?;
    /// let mut page = Vec::new();
    /// SavedTrace::read(&path)?.write_page("my run", &mut page)?;
    /// assert!(page.starts_with(b"<!doctype html>"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutputError`] if `to` fails.
    pub fn write_page(&self, title: &str, to: &mut impl Write) -> Result<()> {
        let written = to.write_all(self.page(title).as_bytes());
        written.map_err(|error| OutputError::of("a page", &error).into())
    }

    /// Writes the page to a file, which is replaced as a whole or not at all; `title` is its heading.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::timeline::SavedTrace;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("run.json");
    /// Timeline::new().save_trace(&path)?;
    /// SavedTrace::read(&path)?.save_page("my run", path.with_extension("html"))?;
    /// assert!(path.with_extension("html").exists());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn save_page(&self, title: &str, path: impl AsRef<Path>) -> Result<()> {
        save(path.as_ref(), &self.page(title))
    }

    fn page(&self, title: &str) -> String {
        let first = self.recorders.first().cloned().unwrap_or_default();
        let is_of_several = self.recorders.len() > 1;
        let all = is_of_several.then(|| Gathered::new(self.recorders.clone(), &self.hosts));
        page::write(&first, title, all.as_ref())
    }
}
