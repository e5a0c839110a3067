use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;
use std::{fmt, io};

use bytesize::ByteSize;

use super::{Incident, IncidentKind};
use crate::error::{Cause, OutputError, Phase, Result};
use crate::monitor::unix_milliseconds;
use crate::output::read;

/// The incidents of a file.
///
/// ```
/// use candle_headroom::incident::{IncidentKind, Incidents};
///
/// let line = r#"{"taken_unix_ms": 1795392000000, "step": 4, "kind": "grown", "text": "8 samples, then 16"}"#;
/// let incidents = Incidents::parse(line);
/// let grown = incidents.list.iter().filter(|incident| incident.kind == IncidentKind::Grown);
/// assert_eq!((grown.count(), incidents.unreadable), (1, 0));
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Incidents {
    /// The incidents in the order in which they were written.
    pub list: Vec<Incident>,
    /// The number of lines that are not incidents, such as an incomplete last line after a power failure.
    pub unreadable: usize,
}

impl Incidents {
    /// Reads a log: the file with `.1` appended to its name, if there is one, and then the file at `path`.
    ///
    /// ```
    /// use candle_headroom::incident::Incidents;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("incidents.jsonl");
    /// let line = r#"{"taken_unix_ms": 1795392000000, "step": 4, "kind": "grown", "text": "8 samples, then 16"}"#;
    /// std::fs::write(&path, line).unwrap();
    /// assert_eq!(Incidents::read(&path)?.list[0].text, "8 samples, then 16");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutputError`] with the path if a file cannot be read or neither exists.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut former = path.as_os_str().to_owned();
        former.push(".1");
        let (former, latest) = (read_if_there(former.as_ref())?, read_if_there(path)?);
        if former.is_none() && latest.is_none() {
            let missing = io::ErrorKind::NotFound.into();
            return Err(OutputError::reading(path, &missing).into());
        }
        let bytes = [former, latest].map(Option::unwrap_or_default).join(&b'\n');
        // An incomplete line may end within a character.
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Reads the lines of a text.
    ///
    /// ```
    /// use candle_headroom::incident::Incidents;
    ///
    /// let line = r#"{"taken_unix_ms": 1795392000000, "step": 4, "kind": "grown", "text": "8 samples, then 16"}"#;
    /// let incidents = Incidents::parse(&format!("{line}\n{{\"taken_unix"));
    /// assert_eq!((incidents.list.len(), incidents.unreadable), (1, 1)); // the last line is incomplete
    /// println!("{}", incidents.summary());
    /// ```
    pub fn parse(text: &str) -> Self {
        let mut incidents = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_slice(line.as_bytes()) {
                Ok(incident) => incidents.list.push(incident),
                Err(_) => incidents.unreadable += 1,
            }
        }
        incidents
    }

    /// A summary of all incidents.
    ///
    /// ```
    /// use candle_headroom::incident::Incidents;
    ///
    /// let line = r#"{"taken_unix_ms": 1795392000000, "step": 4, "kind": "exhausted", "text": "out of memory"}"#;
    /// let incidents = Incidents::parse(line);
    /// assert_eq!(incidents.summary().to_string(), "1 exhaustion, in an unknown phase, at 00:00 UTC");
    /// ```
    pub fn summary(&self) -> IncidentSummary {
        let mut summary = IncidentSummary::default();
        for incident in &self.list {
            *summary.kinds.entry(incident.kind).or_default() += 1;
            if incident.kind != IncidentKind::Exhausted {
                continue;
            }
            let exhausted = incident.exhausted.clone().unwrap_or_default();
            *summary.phases.entry(exhausted.phase).or_default() += 1;
            *summary.causes.entry(exhausted.cause).or_default() += 1;
            if exhausted.cause == Cause::Neighbour {
                summary.neighbour = summary.neighbour.max(exhausted.bytes.others());
            }
            let at = incident.taken();
            // The machine's clock may have been set back, so the first in the file need not be the earliest.
            let (first, last) = summary.between.unwrap_or((at, at));
            summary.between = Some((first.min(at), last.max(at)));
        }
        summary
    }
}

/// The content of a file, or `None` if there is no such file.
fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OutputError::reading(path, &error).into()),
    }
}

/// A summary of incidents. `{}` is a line: `7 exhaustions, all in backward, between 14:02 and 14:05 UTC, a neighbour held 31.0 GiB`.
///
/// ```
/// use candle_headroom::error::Cause;
/// use candle_headroom::incident::Incidents;
///
/// let line = r#"{"taken_unix_ms": 1795392000000, "step": 4, "kind": "exhausted", "text": "out of memory"}"#;
/// let summary = Incidents::parse(line).summary();
/// assert_eq!(summary.causes[&Cause::Unknown], 1);
/// assert_eq!(summary.neighbour, None);
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct IncidentSummary {
    /// How often each kind of incident happened.
    pub kinds: BTreeMap<IncidentKind, usize>,
    /// Exhaustions in each phase; `None` if it is not known.
    pub phases: BTreeMap<Option<Phase>, usize>,
    /// Exhaustions from each cause.
    pub causes: BTreeMap<Cause, usize>,
    /// The times of the first and the last exhaustion.
    pub between: Option<(SystemTime, SystemTime)>,
    /// The most memory that others held in an exhaustion caused by a neighbour, in bytes.
    pub neighbour: Option<u64>,
}

impl IncidentSummary {
    /// How often one of these kinds happened.
    ///
    /// ```
    /// use candle_headroom::incident::{IncidentKind, Incidents};
    ///
    /// let line = r#"{"taken_unix_ms": 1795392000000, "step": 4, "kind": "grown", "text": "8 samples, then 16"}"#;
    /// let summary = Incidents::parse(line).summary();
    /// assert_eq!(summary.count(&[IncidentKind::Grown, IncidentKind::Shrunk]), 1);
    /// assert_eq!(summary.count(&[IncidentKind::Exhausted]), 0);
    /// ```
    pub fn count(&self, kinds: &[IncidentKind]) -> usize {
        kinds.iter().filter_map(|kind| self.kinds.get(kind)).sum()
    }

    /// The phases of the exhaustions, the most frequent first.
    fn phases(&self) -> Option<String> {
        let mut phases: Vec<_> = self.phases.iter().collect();
        phases.sort_by_key(|(_, count)| Reverse(**count));
        let is_one = phases.len() == 1;
        let phases = phases.into_iter().map(|(phase, count)| {
            let phase = phase.map_or("an unknown phase".to_owned(), |phase| phase.to_string());
            match (is_one, count) {
                (true, 1) => format!("in {phase}"),
                (true, _) => format!("all in {phase}"),
                (false, count) => format!("{count} in {phase}"),
            }
        });
        phases.reduce(|before, next| format!("{before} and {next}"))
    }
}

impl fmt::Display for IncidentSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use IncidentKind::{Exhausted, Failed, Fault, Grown, Keeping, Recomputing, Shrunk};
        let counted = |kinds: &[_], one, many| match self.count(kinds) {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {many}")),
        };
        let exhaustions = counted(&[Exhausted], "exhaustion", "exhaustions");
        let time = self.between.map(|(first, last)| {
            let days = last.duration_since(first).unwrap_or_default().as_secs_f64() / 86_400.;
            match (hour(first), hour(last)) {
                _ if days > 1. => format!("over {days:.1} days"),
                (first, last) if first == last => format!("at {first} UTC"),
                (first, last) => format!("between {first} and {last} UTC"),
            }
        });
        let neighbour = self.neighbour.map(ByteSize);
        let sizes = [Grown, Shrunk, Recomputing, Keeping];
        let parts = [
            exhaustions.or_else(|| Some("no exhaustion".to_owned())),
            self.phases(),
            time,
            neighbour.map(|bytes| format!("a neighbour held {bytes}")),
            counted(&sizes, "change of size", "changes of size"),
            counted(&[Failed, Fault], "step failed", "steps failed"),
            (self.count(&[Fault]) > 0).then(|| "the device was lost".to_owned()),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

/// Hour and minute of the day.
fn hour(time: SystemTime) -> String {
    let minutes = unix_milliseconds(time) / 60_000;
    format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60)
}
