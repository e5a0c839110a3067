//! The record as one file for a browser, assembled from the files in this folder.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::ranks::{Gathered, RankTime, Ranked};
use super::recorder::Recorder;

/// How many of the latest phases are on the page. The trace has all that are kept.
const PHASES: usize = 240;

/// A page of one process's record, and of all ranks' if it is one of several.
pub(super) fn write(recorder: &Recorder, title: &str, all: Option<&Gathered>) -> String {
    let escaped = title.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        include_str!("page.html"),
        title = escaped.replace('>', "&gt;").replace('"', "&quot;"),
        style = include_str!("page.css"),
        // `</script` would end the script element that holds the data; JSON allows this escape for the bracket.
        data = data(recorder, all).to_string().replace('<', "\\u003c"),
        script = concat!(include_str!("charts.js"), include_str!("sections.js")),
    )
}

/// The rows as they are recorded; unknown values are `null`.
fn data(recorder: &Recorder, all: Option<&Gathered>) -> Value {
    let numbers = recorder.numbers.iter().map(|(name, series)| {
        let mut series = columns(&series.rows);
        series.insert("name".to_owned(), name.as_str().into());
        series
    });
    let dropped = recorder.phases.len().saturating_sub(PHASES);
    let mut data = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "began": recorder.origin.unix_ms,
        "now": recorder.now(),
        "totals": recorder.totals,
        "steps": columns(&recorder.steps.rows),
        "evaluations": recorder.evaluations,
        "numbers": numbers.collect::<Vec<_>>(),
        "phases": recorder.phases.iter().skip(dropped).collect::<Vec<_>>(),
        "marks": recorder.marks,
        "notes": recorder.notes,
        "layers": recorder.layers,
    });
    if let Some(all) = all {
        let lanes = all.ranks.iter().zip(&all.times.ranks);
        let lanes: Vec<_> = lanes.map(|(rank, time)| lane(rank, time)).collect();
        data["ranks"] = json!({ "sentence": all.times.to_string(), "lanes": lanes });
    }
    data
}

/// What a rank did in all, and in its updates in whole microseconds.
fn lane(rank: &Ranked, time: &RankTime) -> Value {
    let mut lane = json!(time);
    lane["shift"] = json!(rank.shift.round() as i64);
    for (name, column) in columns(&rank.recorder.exchanges.done.rows) {
        let numbers = column.as_array().into_iter().flatten();
        let whole = numbers.map(|number| number.as_f64().unwrap_or_default().round() as i64);
        lane[name] = whole.collect();
    }
    lane
}

/// A list for each field of the rows, which takes a third of the bytes of a list of rows.
fn columns<R: Serialize + Default>(rows: &[R]) -> Map<String, Value> {
    let rows: Vec<_> = rows.iter().map(|row| json!(row)).collect();
    // A default row names the fields of an empty list too.
    let Value::Object(mut columns) = json!(R::default()) else {
        return Map::new();
    };
    for (name, column) in &mut columns {
        *column = rows.iter().map(|row| row[name].clone()).collect();
    }
    columns
}
