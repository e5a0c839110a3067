//! A report as a table, and as the text that flame graphs are drawn from.

use std::fmt::{self, Formatter};
use std::io;
use std::time::Duration;

use bytesize::ByteSize;

use super::report::{LayerReport, LayerRow, RowKind};
use crate::error::{OutputError, Result};
use crate::memory::bytes_text;

/// The rows of `{}`.
const MOST: usize = 16;

const NOTHING_SEEN: &str = "no layer was seen: a model's spans exist only if `LayerMemory` is installed before the model is created, \
                            and no filter of the subscriber, and none of tracing's `max_level` features, drops the level TRACE";

impl LayerReport {
    /// A table of the `count` largest rows: bytes at the peak, their share of it and the sum of the shares so far, bytes kept after the
    /// calls with the layers within, number of calls, and host time without the layers within.
    ///
    /// On a GPU time is that of queuing the work.
    ///
    /// ```
    /// # use candle_headroom::layers::{LayerReport, LayerRow};
    /// # let mut row = LayerRow::default();
    /// # row.spans = vec!["model".to_owned(), "block.3".to_owned()];
    /// # row.calls = 1;
    /// # row.at_peak = Some(8 << 20);
    /// # let mut report = LayerReport::default();
    /// # report.peak = Some(10 << 20);
    /// # report.rows = vec![row];
    /// // `report` is from `LayerMemory::report`: `model.block.3` held 8 MiB of 10 MiB.
    /// let table = report.table(20);
    /// assert!(table.starts_with("highest use 10.0 MiB; 80.0 % attributed"));
    /// assert!(table.ends_with("model.block.3"));
    /// ```
    pub fn table(&self, count: usize) -> String {
        if self.is_empty() {
            return NOTHING_SEEN.to_owned();
        }
        let header = ["at peak", "share", "sum", "kept", "calls", "own time"].map(str::to_owned);
        let mut lines = vec![self.title(), line(&header, "layer")];
        let mut sum = 0;
        for row in self.rows.iter().take(count) {
            sum += row.at_peak.unwrap_or(0);
            lines.push(self.line(row, sum));
        }
        let left = self.rows.get(count..).unwrap_or_default();
        if !left.is_empty() {
            let bytes = bytes_text(left.iter().map(|row| row.at_peak).sum());
            lines.push(format!("{bytes:>11}  in {} more rows", left.len()));
        }
        lines.join("\n")
    }

    /// The first line of the table: the work, its highest use, and how much of that is attributed.
    pub(crate) fn title(&self) -> String {
        let work = self.work.map_or(String::new(), |work| {
            let what = match work.samples {
                0 => "update".to_owned(),
                samples => format!("micro-batch of {samples}"),
            };
            format!("{} {}, {what}: ", work.task, work.step + 1)
        });
        let Some(peak) = self.peak.map(ByteSize) else {
            return format!("{work}memory is not counted on this device");
        };
        let at = match self.peak_at.as_slice() {
            [] => String::new(),
            parts => format!(" in {}", parts.join(".")),
        };
        let share = self.attributed();
        let share = share.map_or(String::new(), |share| {
            format!("; {:.1} % attributed", share * 100.)
        });
        format!("{work}highest use {peak}{at}{share}")
    }

    /// The line of a row. With it, the rows so far have `sum` bytes.
    fn line(&self, row: &LayerRow, sum: u64) -> String {
        let peak = self.peak.filter(|peak| *peak > 0);
        let share = |bytes: Option<u64>| {
            let share = bytes.zip(peak);
            share.map_or(String::new(), |(bytes, peak)| {
                format!("{:.1} %", bytes as f64 / peak as f64 * 100.)
            })
        };
        let held = row.held.map_or(String::new(), |held| {
            let sign = if held < 0 { "-" } else { "" };
            format!("{sign}{}", ByteSize(held.unsigned_abs()))
        });
        let (calls, time) = match row.calls {
            0 => Default::default(),
            calls => (calls.to_string(), time(row.own_time)),
        };
        let bytes = row.at_peak.map(|bytes| ByteSize(bytes).to_string());
        let sum = share(row.at_peak.map(|_| sum));
        let columns = [
            bytes.unwrap_or_default(),
            share(row.at_peak),
            sum,
            held,
            calls,
            time,
        ];
        line(&columns, &row.name())
    }
}

impl fmt::Display for LayerReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.folded().table(MOST))
    }
}

fn line([bytes, share, sum, held, calls, time]: &[String; 6], name: &str) -> String {
    format!("{bytes:>11} {share:>6} {sum:>6} {held:>11} {calls:>6} {time:>10}  {name}")
}

fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        seconds if seconds < 1. => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}

/// The meaning of a flame graph's widths.
///
/// ```
/// # use candle_headroom::layers::{LayerReport, LayerRow};
/// use candle_headroom::layers::FlameGraph;
///
/// # let mut row = LayerRow::default();
/// # row.spans = vec!["model".to_owned(), "block.3".to_owned()];
/// # row.calls = 1;
/// # row.at_peak = Some(8 << 20);
/// # let mut report = LayerReport::default();
/// # report.peak = Some(10 << 20);
/// # report.rows = vec![row];
/// // `report` is from `LayerMemory::report`: `model.block.3` held 8 MiB of 10 MiB.
/// assert_eq!(report.flame_graph(FlameGraph::Bytes)?, "model;block.3 8388608\n");
/// assert!(report.flame_graph(FlameGraph::Time).is_err()); // no time was measured here
/// # Ok::<(), candle_headroom::Error>(())
/// ```
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
    /// ```
    /// # use candle_headroom::layers::{LayerReport, LayerRow};
    /// use candle_headroom::layers::FlameGraph;
    ///
    /// # let mut row = LayerRow::default();
    /// # row.spans = vec!["model".to_owned(), "block.3".to_owned()];
    /// # row.calls = 1;
    /// # row.at_peak = Some(8 << 20);
    /// # let mut report = LayerReport::default();
    /// # report.peak = Some(10 << 20);
    /// # report.rows = vec![row];
    /// // `report` is from `LayerMemory::report`: `model.block.3` held 8 MiB of 10 MiB.
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let stacks = report.flame_graph(FlameGraph::Bytes)?;
    /// assert_eq!(stacks, "model;block.3 8388608\n");
    /// std::fs::write(folder.join("layers.folded"), stacks).unwrap();
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
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
