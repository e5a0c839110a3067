//! The answer as a page: one file, without scripts.

use std::fmt::Write;
use std::path::Path;

use super::answer::Answer;
use crate::output::Result;

/// The picture's size.
const WIDTH: u64 = 900;
const HEIGHT: u64 = 320;

/// Writes the page, in place of one that exists.
pub fn save(answer: &Answer, file: &Path) -> Result<()> {
    let page = include_str!("page.html")
        .replace("{card}", &escape(&answer.card))
        .replace("{answer}", &escape(&answer.text(true)))
        .replace("{picture}", &picture(answer));
    std::fs::write(file, page).map_err(|error| format!("{}: {error}", file.display()).into())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Bytes held over allocations, below the card's memory.
fn picture(answer: &Answer) -> String {
    let Some(peak) = &answer.peak else {
        return String::new();
    };
    let top = answer.capacity_bytes.max(peak.tensor_bytes).max(1);
    let y = |bytes: u64| HEIGHT as f64 - bytes as f64 / top as f64 * HEIGHT as f64;
    let step = WIDTH as f64 / peak.line.len().max(1) as f64;
    let mut points = format!("0,{HEIGHT}");
    for (index, bytes) in peak.line.iter().enumerate() {
        let x = index as f64 * step;
        _ = write!(points, " {x:.1},{0:.1} {1:.1},{0:.1}", y(*bytes), x + step);
    }
    _ = write!(points, " {WIDTH},{HEIGHT}");
    let [_, outside] = peak.outside_bytes;
    let limit = y(answer.capacity_bytes.saturating_sub(outside));
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Bytes held by tensors over {} allocations\">\
         <polygon points=\"{points}\"/><line x1=\"0\" x2=\"{WIDTH}\" y1=\"{limit:.1}\" y2=\"{limit:.1}\"/></svg>\n\
         <p>Held by tensors, over {} allocations. The dashed line is what the card has for tensors, at the least.</p>",
        peak.allocations, peak.allocations
    )
}
