//! A report as a flame graph.

use std::io;

use inferno::flamegraph::{Options, from_lines};

use super::report::{LayerReport, LayerRow, RowKind};
use crate::error::{OutputError, Result};

/// The meaning of a flame graph's widths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlameGraph {
    /// Bytes held at the peak.
    #[default]
    Bytes,
    /// Host time.
    Time,
}

impl LayerReport {
    /// The report as a flame graph: an SVG for a browser, in which each layer lies on the one around it. A click on one enlarges it.
    ///
    /// # Errors
    /// [`OutputError`] if there is nothing to draw: no layer was seen or, for bytes, memory is not counted.
    pub fn flame_graph(&self, widths: FlameGraph) -> Result<String> {
        let value = |row: &LayerRow| match widths {
            FlameGraph::Bytes => row.at_peak.unwrap_or(0),
            FlameGraph::Time => u64::try_from(row.own_time.as_micros()).unwrap_or(u64::MAX),
        };
        let rows = self.rows.iter().filter(|row| value(row) > 0);
        let lines: Vec<_> = rows
            .map(|row| format!("{} {}", stack(row), value(row)))
            .collect();
        let mut options = Options::default();
        options.deterministic = true;
        (options.title, options.count_name) = match widths {
            FlameGraph::Bytes => (
                "Memory by layer at the highest use".to_owned(),
                "bytes".to_owned(),
            ),
            FlameGraph::Time => ("Host time by layer".to_owned(), "µs".to_owned()),
        };
        let failed = |error: io::Error| OutputError::of("a flame graph", &error);
        if self.is_empty() || lines.is_empty() {
            return Err(failed(io::Error::other(
                "no layer was seen, or memory is not counted",
            ))
            .into());
        }
        let mut svg = Vec::new();
        from_lines(&mut options, lines.iter().map(String::as_str), &mut svg).map_err(failed)?;
        let text = String::from_utf8(svg).map_err(|error| failed(io::Error::other(error)))?;
        Ok(text)
    }
}

/// The frames of a row, the outermost first.
fn stack(row: &LayerRow) -> String {
    let phase = row.phase.filter(|_| row.kind == RowKind::Layer);
    let phase = phase.map(|phase| phase.to_string());
    // A semicolon ends a frame.
    let frames = phase.iter().chain(&row.spans);
    let frames: Vec<_> = frames.map(|frame| frame.replace(';', ",")).collect();
    let stack = frames.join(";");
    // A number after a space would be taken for a second count of the line.
    match stack.rsplit_once(' ') {
        Some((before, number)) if number.chars().all(|c| c.is_ascii_digit() || c == '.') => {
            format!("{before}\u{a0}{number}")
        }
        _ => stack,
    }
}
