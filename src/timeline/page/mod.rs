//! The record as one file for a browser, assembled from the files in this folder.

use std::io::{self, Write};
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use super::recorder::Recorder;
use super::totals::ORDER;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(
    include_str!("words.js"),
    include_str!("chart.js"),
    include_str!("hover.js"),
    include_str!("phases.js"),
    include_str!("build.js"),
);

/// How many of the latest phases are on the page. The trace has all that are kept.
const PHASES: usize = 4000;

pub(super) fn write(recorder: &Recorder, title: &str, to: &mut impl Write) -> io::Result<()> {
    let title = escape(title);
    // `</script` would end the script element that holds the data; JSON allows this escape for the bracket.
    let data = data(recorder).to_string().replace('<', "\\u003c");
    let mut rest = PAGE;
    for (place, text) in [
        ("{title}", title.as_str()),
        ("{style}", STYLE),
        ("{heading}", title.as_str()),
        ("{data}", &data),
        ("{script}", SCRIPT),
    ] {
        // Each placeholder occurs once, in this order; inserted text is not searched again.
        if let Some((before, after)) = rest.split_once(place) {
            to.write_all(before.as_bytes())?;
            to.write_all(text.as_bytes())?;
            rest = after;
        }
    }
    to.write_all(rest.as_bytes())
}

/// Columns, because they take a third of the bytes of rows. Times are milliseconds since the beginning; unknown values are `null`.
fn data(recorder: &Recorder) -> Value {
    let totals = &recorder.totals;
    let steps = recorder.steps.rows();
    let kept = recorder.phases.len();
    let phases = || recorder.phases.iter().skip(kept.saturating_sub(PHASES));
    let began = recorder.began.duration_since(UNIX_EPOCH);
    let order = |phase| ORDER.iter().position(|known| *known == phase);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "began": began.unwrap_or_default().as_millis() as u64,
        "now": milliseconds(recorder.now()),
        "totals": {
            "steps": totals.steps, "samples": totals.samples, "recomputed": totals.recomputed,
            "exhaustions": totals.exhaustions, "failures": totals.failures, "peak": totals.peak,
            "marks": totals.marks,
        },
        "steps": {
            "began": column(steps, |row| milliseconds(row.began)),
            "ended": column(steps, |row| milliseconds(row.ended)),
            "busy": column(steps, |row| milliseconds(row.busy)),
            "steps": column(steps, |row| row.steps),
            "last": column(steps, |row| row.last),
            "samples": column(steps, |row| row.samples),
            "micro": column(steps, |row| row.micro_batches),
            "least": column(steps, |row| row.least),
            "most": column(steps, |row| row.most),
            "retries": column(steps, |row| row.retries),
            "inUse": column(steps, |row| row.in_use),
            "reserved": column(steps, |row| row.reserved),
            "peak": column(steps, |row| row.peak),
            "limit": column(steps, |row| row.limit),
            "fits": column(steps, |row| row.planned.and_then(|planned| planned.fits)),
            "planned": column(steps, |row| row.planned.and_then(|planned| planned.peak)),
            "reason": column(steps, |row| row.planned.map(|planned| planned.reason.to_string())),
        },
        "evaluations": column(&recorder.evaluations, |row| json!({
            "began": milliseconds(row.began), "ended": milliseconds(row.ended), "peak": row.peak,
            "samples": row.samples, "most": row.most,
        })),
        "numbers": column(&recorder.numbers, |(name, series)| json!({
            "name": name,
            "at": column(series.rows(), |number| milliseconds(number.at)),
            "value": column(series.rows(), |number| number.value),
        })),
        "phaseNames": column(ORDER, |phase| phase.to_string()),
        "phaseTotals": column(&totals.phases, |total| json!({
            "count": total.count, "time": milliseconds(total.nanoseconds), "peak": total.peak,
        })),
        "phases": {
            "began": column(phases(), |row| milliseconds(row.began)),
            "ended": column(phases(), |row| milliseconds(row.ended)),
            "phase": column(phases(), |row| order(row.phase)),
            "step": column(phases(), |row| row.step),
            "ok": column(phases(), |row| u8::from(row.succeeded)),
            "inUse": column(phases(), |row| row.memory.in_use),
            "peak": column(phases(), |row| row.memory.peak),
        },
        "marks": column(&recorder.marks, |mark| json!({
            "at": milliseconds(mark.at), "step": mark.step, "kind": mark.kind, "text": mark.text, "detail": mark.detail,
        })),
        "notes": column(&recorder.notes, |(at, text)| json!({ "at": milliseconds(*at), "text": text })),
    })
}

fn column<R, T: Into<Value>>(
    rows: impl IntoIterator<Item = R>,
    field: impl Fn(R) -> T,
) -> Vec<Value> {
    rows.into_iter().map(|row| field(row).into()).collect()
}

/// With microseconds as decimals.
fn milliseconds(nanoseconds: u64) -> f64 {
    (nanoseconds / 1000) as f64 / 1e3
}

fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    escaped.replace('>', "&gt;").replace('"', "&quot;")
}
