use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::gathered::Gathered;
use super::output::save;
use super::page;
use super::recorder::Recorder;
use super::trace::{EVALUATIONS, INSTANTS, MICRO_BATCHES, PHASES, STEPS, SavedRecord};
use crate::error::{OutputError, Result};

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
    trace_events: Vec<Event>,
}

#[derive(Deserialize)]
struct Other {
    records: Vec<SavedRecord>,
}

#[derive(Deserialize)]
struct Event {
    pid: u64,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    args: Value,
}

impl SavedTrace {
    /// Reads the file of a trace.
    ///
    /// # Errors
    /// [`OutputError`] with the path if the file cannot be read, or is not a whole trace that this crate wrote.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read = fs::metadata(path).and_then(|there| match there.is_file() {
            true => fs::read(path),
            // A device such as `/dev/zero` has no end.
            false => Err(io::Error::other("not a regular file")),
        });
        let parsed = read.and_then(|bytes| Self::parse(&bytes));
        parsed.map_err(|error| OutputError::reading(path, &error).into())
    }

    pub(super) fn parse(bytes: &[u8]) -> io::Result<Self> {
        let invalid = |error: serde_json::Error| {
            let reason = format!("not a whole trace of a `Timeline`: {error}");
            io::Error::new(io::ErrorKind::InvalidData, reason)
        };
        let trace: Trace = serde_json::from_slice(bytes).map_err(invalid)?;
        let mut records = trace.other_data.records;
        for event in trace.trace_events {
            let mut processes = records.iter_mut();
            if let Some(of) = processes.find(|record| record.process == event.pid) {
                add(&mut of.record, &event.cat, event.args).map_err(invalid)?;
            }
        }
        let (recorders, hosts) = records
            .into_iter()
            .map(|saved| (saved.record, saved.host))
            .unzip();
        Ok(Self { recorders, hosts })
    }

    /// Writes the page; `title` is its heading.
    ///
    /// # Errors
    /// [`OutputError`] if `to` fails.
    pub fn write_page(&self, title: &str, to: &mut impl Write) -> Result<()> {
        let written = to.write_all(self.page(title).as_bytes());
        written.map_err(|error| OutputError::of("a page", &error).into())
    }

    /// Writes the page to a file, which is replaced as a whole or not at all; `title` is its heading.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn save_page(&self, title: &str, path: impl AsRef<Path>) -> Result<()> {
        save(path.as_ref(), &self.page(title))
    }

    pub(super) fn page(&self, title: &str) -> String {
        let first = self.recorders.first().cloned().unwrap_or_default();
        let is_of_several = self.recorders.len() > 1;
        let all = is_of_several.then(|| Gathered::new(self.recorders.clone(), &self.hosts));
        page::write(&first, title, all.as_ref())
    }
}

/// Adds the row of an event to the record.
fn add(to: &mut Recorder, category: &str, row: Value) -> serde_json::Result<()> {
    use serde_json::from_value as read;
    match category {
        _ if category == STEPS.1 => to.steps.rows.push(read(row)?),
        _ if category == EVALUATIONS.1 => to.evaluations.push_back(read(row)?),
        _ if category == MICRO_BATCHES.1 => to.micro_batches.push_back(read(row)?),
        _ if category == PHASES.1 => to.phases.push_back(read(row)?),
        _ if category != INSTANTS => {}
        _ if row.get("kind").is_some() => to.marks.push_back(read(row)?),
        _ => to.notes.push_back(read(row)?),
    }
    Ok(())
}
