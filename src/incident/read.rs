use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use serde_json::Value;

use super::IncidentSummary;
use crate::batch::{Plan, Reason};
use crate::error::{OutputError, Result};

/// The incidents of a file, read back.
///
/// ```
/// use candle_headroom::Incidents;
///
/// let incidents = Incidents::parse(r#"{"taken_unix_ms":0,"step":3,"kind":"grown","text":"micro-batch 8 → 16: there is room"}"#);
/// assert_eq!((incidents.list.len(), incidents.unreadable), (1, 0));
/// assert_eq!(incidents.summary().to_string(), "no exhaustion, 1 change of size");
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Incidents {
    /// In the order in which they were written.
    pub list: Vec<Incident>,
    /// Lines that are none, as a machine that lost its power can leave behind.
    pub unreadable: usize,
}

/// One line of an [`IncidentLog`](super::IncidentLog).
///
/// ```
/// use candle_headroom::Incidents;
///
/// let incidents = Incidents::parse(r#"{"taken_unix_ms":0,"step":3,"kind":"grown","text":"…","size":{"from":8,"to":16}}"#);
/// assert_eq!(incidents.list[0].fields["size"]["to"], 16);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Incident {
    /// By the machine's clock.
    pub taken: SystemTime,
    /// `training`, `evaluation` or `processing`, each of which counts its own steps.
    pub task: Option<String>,
    /// In which step, counted from 1.
    pub step: u64,
    /// `exhausted`, `retried`, `grown`, `shrunk`, `paced`, `restarted`, `over_limit`, `failed` or `fault`.
    pub kind: String,
    /// What happened, as a sentence.
    pub text: String,
    /// What the policy believed at that time, where it can tell.
    pub plan: Option<Plan>,
    /// The whole line: `exhausted` with its `bytes`, `fault`, `size`, `samples`.
    pub fields: Value,
}

impl Incidents {
    /// Reads a file, and before it the one that was put aside when it had become too long, if there is one.
    ///
    /// # Errors
    /// [`OutputError`] with the path, where it cannot be read.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut former = path.as_os_str().to_owned();
        former.push(".1");
        // It is there only in long runs.
        let mut bytes = match fs::read(&former) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            former_bytes => {
                former_bytes.map_err(|error| OutputError::reading(former.as_ref(), &error))?
            }
        };
        if bytes.last().is_some_and(|last| *last != b'\n') {
            bytes.push(b'\n');
        }
        bytes.extend(fs::read(path).map_err(|error| OutputError::reading(path, &error))?);
        // A line that was cut off may end within a character.
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Reads lines; what is none is counted and passed over.
    pub fn parse(text: &str) -> Self {
        let mut incidents = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match Incident::parse(line) {
                Some(incident) => incidents.list.push(incident),
                None => incidents.unreadable += 1,
            }
        }
        incidents
    }

    /// What it comes down to.
    pub fn summary(&self) -> IncidentSummary {
        IncidentSummary::of(&self.list)
    }
}

impl Incident {
    fn parse(line: &str) -> Option<Self> {
        let fields: Value = serde_json::from_str(line).ok()?;
        let since = Duration::from_millis(fields["taken_unix_ms"].as_u64()?);
        Some(Self {
            taken: UNIX_EPOCH.checked_add(since)?,
            task: fields["task"].as_str().map(str::to_owned),
            plan: plan(&fields["plan"]),
            step: fields["step"].as_u64()?,
            kind: fields["kind"].as_str()?.to_owned(),
            text: fields["text"].as_str()?.to_owned(),
            fields,
        })
    }
}

/// As it was written.
fn plan(written: &Value) -> Option<Plan> {
    let reason = written["reason"].as_str()?;
    let samples = |name: &str| usize::try_from(written[name].as_u64()?).ok();
    Some(Plan {
        base: written["base"].as_u64(),
        each: written["each"].as_u64(),
        each_forward: written["each_forward"].as_u64(),
        room: written["room"].as_u64(),
        fits: samples("fits"),
        using: samples("using"),
        reason: Reason::named(reason)?,
    })
}
