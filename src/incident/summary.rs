use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytesize::ByteSize;

use super::kind::IncidentKind;
use super::record::Incident;
use crate::error::{Cause, Phase};

/// A summary of incidents. `{}` is one line: `7 exhaustions, all in backward, between 14:02 and 14:05 UTC, a neighbour held
/// 31.0 GiB`.
///
/// ```
/// use candle_headroom::incident::Incidents;
///
/// let incidents = Incidents::parse(
///     r#"{"taken_unix_ms":50520000,"step":7,"kind":"exhausted","text":"…","exhausted":{"phase":"backward"}}"#,
/// );
/// assert_eq!(incidents.summary().to_string(), "1 exhaustion, in backward, at 14:02 UTC");
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct IncidentSummary {
    /// How often memory ran out.
    pub exhaustions: usize,
    /// Exhaustions in each phase; `None` if it is not known.
    pub phases: BTreeMap<Option<Phase>, usize>,
    /// Exhaustions from each cause; `None` if it is not one that this version knows.
    pub causes: BTreeMap<Option<Cause>, usize>,
    /// The times of the first and the last exhaustion.
    pub between: Option<(SystemTime, SystemTime)>,
    /// The most memory that others held in an exhaustion caused by a neighbour, in bytes.
    pub neighbour: Option<u64>,
    /// How often the size of micro-batches changed without a failure.
    pub adaptations: usize,
    /// Batches that ended with an error.
    pub failed: usize,
    /// Batches that ended because the device was lost; also counted in `failed`.
    pub faults: usize,
}

impl IncidentSummary {
    pub(super) fn of(incidents: &[Incident]) -> Self {
        let mut summary = Self::default();
        for incident in incidents {
            match incident.kind {
                IncidentKind::Exhausted => summary.add(incident),
                IncidentKind::Grown | IncidentKind::Shrunk | IncidentKind::Paced => {
                    summary.adaptations += 1;
                }
                IncidentKind::Failed => summary.failed += 1,
                IncidentKind::Fault => {
                    summary.failed += 1;
                    summary.faults += 1;
                }
                _ => {}
            }
        }
        summary
    }

    fn add(&mut self, incident: &Incident) {
        self.exhaustions += 1;
        let exhausted = incident.exhausted.as_ref();
        let phase = exhausted.and_then(|exhausted| exhausted.phase);
        *self.phases.entry(phase).or_default() += 1;
        let cause = exhausted.and_then(|exhausted| exhausted.cause);
        *self.causes.entry(cause).or_default() += 1;
        if cause == Some(Cause::Neighbour) {
            let others = exhausted.and_then(|exhausted| exhausted.others);
            self.neighbour = self.neighbour.max(others);
        }
        let at = incident.taken();
        // The machine's clock may have been set back, so the first in the file need not be the earliest.
        self.between = Some(match self.between {
            Some((first, last)) => (first.min(at), last.max(at)),
            None => (at, at),
        });
    }
}

impl fmt::Display for IncidentSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exhaustions {
            0 => f.write_str("no exhaustion")?,
            1 => f.write_str("1 exhaustion")?,
            many => write!(f, "{many} exhaustions")?,
        }
        let unknown = "an unknown phase";
        let name = |phase: &Option<Phase>| phase.map_or(unknown.into(), |phase| phase.to_string());
        let mut phases: Vec<_> = self.phases.iter().collect();
        phases.sort_by_key(|(_, count)| Reverse(**count));
        match &phases[..] {
            [] => {}
            [(phase, 1)] => write!(f, ", in {}", name(phase))?,
            [(phase, _)] => write!(f, ", all in {}", name(phase))?,
            phases => {
                let phases = phases.iter();
                let phases = phases.map(|(phase, count)| format!("{count} in {}", name(phase)));
                write!(f, ", {}", phases.collect::<Vec<_>>().join(" and "))?;
            }
        }
        if let Some((first, last)) = self.between {
            let days = last.duration_since(first).unwrap_or_default().as_secs_f64() / 86_400.;
            match (hour(first), hour(last)) {
                _ if days > 1. => write!(f, ", over {days:.1} days")?,
                (first, last) if first == last => write!(f, ", at {first} UTC")?,
                (first, last) => write!(f, ", between {first} and {last} UTC")?,
            }
        }
        if let Some(bytes) = self.neighbour {
            write!(f, ", a neighbour held {}", ByteSize(bytes))?;
        }
        match self.adaptations {
            0 => {}
            1 => f.write_str(", 1 change of size")?,
            many => write!(f, ", {many} changes of size")?,
        }
        match self.failed {
            0 => {}
            1 => f.write_str(", 1 step failed")?,
            many => write!(f, ", {many} steps failed")?,
        }
        match self.faults {
            0 => Ok(()),
            _ => f.write_str(", the device was lost"),
        }
    }
}

/// Hour and minute of the day.
fn hour(time: SystemTime) -> String {
    let since: Duration = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let minutes = since.as_secs() / 60;
    format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60)
}
