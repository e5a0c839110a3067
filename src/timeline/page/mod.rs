//! The record as one file for a browser, assembled from the files in this folder.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::recorder::Recorder;

/// How many of the latest phases are on the page. The trace has all that are kept.
const PHASES: usize = 240;

pub(super) fn write(recorder: &Recorder, title: &str) -> String {
    let escaped = title.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        include_str!("page.html"),
        title = escaped.replace('>', "&gt;").replace('"', "&quot;"),
        style = include_str!("page.css"),
        // `</script` would end the script element that holds the data; JSON allows this escape for the bracket.
        data = data(recorder).to_string().replace('<', "\\u003c"),
        script = concat!(
            include_str!("words.js"),
            include_str!("chart.js"),
            include_str!("hover.js"),
            include_str!("phases.js"),
            include_str!("build.js"),
        ),
    )
}

/// The rows as they are recorded; unknown values are `null`.
fn data(recorder: &Recorder) -> Value {
    let numbers = recorder.numbers.iter().map(|(name, series)| {
        let mut series = columns(&series.rows);
        series.insert("name".to_owned(), name.as_str().into());
        series
    });
    let dropped = recorder.phases.len().saturating_sub(PHASES);
    json!({
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
    })
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
