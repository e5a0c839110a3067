//! A report as the text that flame graphs are drawn from.

use std::io;

use super::report::{LayerReport, LayerRow, RowKind};
use crate::error::{OutputError, Result};

/// The meaning of a flame graph's widths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlameGraph {
    /// Bytes held at the peak.
    #[default]
    Bytes,
    /// Host time, in microseconds.
    Time,
}

impl LayerReport {
    /// The report as folded stacks, which tools draw as a flame graph: a line for each row, with the layers around it, the outermost
    /// first, and its bytes or microseconds, as in `forward;model;block.0 8388608`. Open the file in speedscope.app, or draw it with
    /// `inferno-flamegraph` or `flamegraph.pl`.
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
            .map(|row| format!("{} {}\n", stack(row), value(row)))
            .collect();
        if self.is_empty() || lines.is_empty() {
            let error = io::Error::other("no layer was seen, or memory is not counted");
            return Err(OutputError::of("a flame graph", &error).into());
        }
        Ok(lines.concat())
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
