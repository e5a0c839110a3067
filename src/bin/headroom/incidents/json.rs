//! Incidents for other programs.

use std::collections::BTreeMap;

use candle_headroom::incident::{IncidentSummary, Incidents};
use serde_json::json;

use super::super::output::Result;

pub fn as_lines(all: &Incidents) -> Result<String> {
    let lines = all.list.iter().map(serde_json::to_string);
    let lines = lines.map(|line| line.map(|line| line + "\n"));
    Ok(lines.collect::<serde_json::Result<_>>()?)
}

pub fn as_object(all: &Incidents, summary: &IncidentSummary) -> String {
    let phases = summary.phases.iter().map(|(phase, count)| {
        let name = phase.map_or("unknown".to_owned(), |phase| phase.to_string());
        (name, count)
    });
    let milliseconds = |time: std::time::SystemTime| {
        let since = time.duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
    };
    let between = summary.between;
    let object = json!({
        "incidents": all.list.len(),
        "unreadable": all.unreadable,
        "kinds": summary.kinds,
        "phases": phases.collect::<BTreeMap<_, _>>(),
        "causes": summary.causes,
        "first_exhaustion_unix_ms": between.map(|(first, _)| milliseconds(first)),
        "last_exhaustion_unix_ms": between.map(|(_, last)| milliseconds(last)),
        "neighbour_bytes": summary.neighbour,
    });
    format!("{object:#}\n")
}
