use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytesize::ByteSize;

use super::Incident;

/// What a file of incidents comes down to, as one line: «7 exhaustions, all in backward, between 14:02 and 14:05 UTC, a neighbour held
/// 31.0 GiB».
///
/// ```
/// use candle_headroom::Incidents;
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
    /// In which phases, and how often.
    pub phases: BTreeMap<String, usize>,
    /// From which causes, and how often.
    pub causes: BTreeMap<String, usize>,
    /// The first and the last exhaustion.
    pub between: Option<(SystemTime, SystemTime)>,
    /// The most that others held on the device in an exhaustion that was blamed on them, in bytes.
    pub neighbour: Option<u64>,
    /// How often the micro-batches' size changed without a failure: grown, shrunk, or for speed.
    pub adaptations: usize,
    /// Steps that failed, by an exhaustion that nothing helped against or by another error.
    pub failed: usize,
    /// Of those, devices that were lost.
    pub faults: usize,
}

impl IncidentSummary {
    pub(super) fn of(incidents: &[Incident]) -> Self {
        let mut summary = Self::default();
        for incident in incidents {
            match incident.kind.as_str() {
                "exhausted" => summary.add(incident),
                "grown" | "shrunk" | "paced" => summary.adaptations += 1,
                "failed" => summary.failed += 1,
                "fault" => {
                    summary.failed += 1;
                    summary.faults += 1;
                }
                _ => {}
            }
        }
        summary
    }

    fn add(&mut self, incident: &Incident) {
        let exhausted = &incident.fields["exhausted"];
        self.exhaustions += 1;
        let phase = exhausted["phase"].as_str().unwrap_or("an unknown phase");
        *self.phases.entry(phase.to_owned()).or_default() += 1;
        let cause = exhausted["cause"].as_str().unwrap_or_default();
        *self.causes.entry(cause.to_owned()).or_default() += 1;
        if cause == crate::error::Cause::Neighbour.to_string() {
            self.neighbour = self.neighbour.max(exhausted["bytes"]["others"].as_u64());
        }
        let at = incident.taken;
        // Clocks are set back at times: the order in the file need not be that of the times.
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
        match self.phases.len() {
            0 => {}
            1 => {
                let all = if self.exhaustions == 1 { "" } else { "all " };
                let phase = self.phases.keys().next();
                write!(f, ", {all}in {}", phase.map_or("", String::as_str))?;
            }
            _ => {
                let phases = self.phases.iter();
                let phases: Vec<_> = phases
                    .map(|(phase, count)| format!("{count} in {phase}"))
                    .collect();
                write!(f, ", {}", phases.join(" and "))?;
            }
        }
        if let Some((first, last)) = self.between {
            const DAY: Duration = Duration::from_secs(24 * 3600);
            let over = last.duration_since(first).unwrap_or_default();
            match (Hour(first).to_string(), Hour(last).to_string()) {
                _ if over > DAY => write!(
                    f,
                    ", over {:.1} days",
                    over.as_secs_f64() / DAY.as_secs_f64()
                )?,
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
            0 => Ok(()),
            1 => write!(f, ", 1 step failed"),
            many => write!(f, ", {many} steps failed"),
        }?;
        match self.faults {
            0 => Ok(()),
            _ => f.write_str(", the device was lost"),
        }
    }
}

/// An hour and minute of the day.
struct Hour(SystemTime);

impl fmt::Display for Hour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self
            .0
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs()
            / 60;
        write!(f, "{:02}:{:02}", minutes / 60 % 24, minutes % 60)
    }
}
