use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytesize::ByteSize;

use super::kind::IncidentKind;
use super::record::Incident;
use crate::error::{Cause, Phase, ResourceExhausted};

/// A summary of incidents. `{}` is one line: `7 exhaustions, all in backward, between 14:02 and 14:05 UTC, a neighbour held
/// 31.0 GiB`.
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
    pub(super) fn of(incidents: &[Incident]) -> Self {
        let mut summary = Self::default();
        for incident in incidents {
            *summary.kinds.entry(incident.kind).or_default() += 1;
            if incident.kind == IncidentKind::Exhausted {
                summary.add(incident);
            }
        }
        summary
    }

    /// How often one of these kinds happened.
    pub fn count(&self, kinds: &[IncidentKind]) -> usize {
        kinds.iter().filter_map(|kind| self.kinds.get(kind)).sum()
    }

    fn add(&mut self, incident: &Incident) {
        let unknown = ResourceExhausted::default();
        let exhausted = incident.exhausted.as_ref().unwrap_or(&unknown);
        *self.phases.entry(exhausted.phase).or_default() += 1;
        *self.causes.entry(exhausted.cause).or_default() += 1;
        if exhausted.cause == Cause::Neighbour {
            self.neighbour = self.neighbour.max(exhausted.bytes.others());
        }
        let at = incident.taken();
        // The machine's clock may have been set back, so the first in the file need not be the earliest.
        let (first, last) = self.between.unwrap_or((at, at));
        self.between = Some((first.min(at), last.max(at)));
    }

    /// The phases of the exhaustions, the most frequent first.
    fn phases(&self) -> Option<String> {
        let mut phases: Vec<_> = self.phases.iter().collect();
        phases.sort_by_key(|(_, count)| Reverse(**count));
        let is_one = phases.len() == 1;
        let phases = phases.into_iter().map(|(phase, count)| {
            let phase = phase.map_or("an unknown phase".to_owned(), |phase| phase.to_string());
            match count {
                1 if is_one => format!("in {phase}"),
                _ if is_one => format!("all in {phase}"),
                count => format!("{count} in {phase}"),
            }
        });
        phases.reduce(|before, next| format!("{before} and {next}"))
    }
}

impl fmt::Display for IncidentSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use IncidentKind::{Exhausted, Failed, Fault, Grown, Paced, Shrunk};
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
        let is_lost = self.count(&[Fault]) > 0;
        let parts = [
            exhaustions.or_else(|| Some("no exhaustion".to_owned())),
            self.phases(),
            time,
            neighbour.map(|bytes| format!("a neighbour held {bytes}")),
            counted(&[Grown, Shrunk, Paced], "change of size", "changes of size"),
            counted(&[Failed, Fault], "step failed", "steps failed"),
            is_lost.then(|| "the device was lost".to_owned()),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

/// Hour and minute of the day.
fn hour(time: SystemTime) -> String {
    let since: Duration = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let minutes = since.as_secs() / 60;
    format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60)
}
