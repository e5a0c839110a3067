//! A report as text.

use std::fmt::{self, Formatter};
use std::time::Duration;

use bytesize::ByteSize;

use super::report::{LayerReport, LayerRow};
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
    pub fn table(&self, count: usize) -> String {
        Table(self, count).to_string()
    }

    /// The first line of the table.
    pub(crate) fn title(&self) -> String {
        Headline(self).to_string()
    }
}

impl fmt::Display for LayerReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Table(&self.folded(), MOST).fmt(f)
    }
}

struct Table<'a>(&'a LayerReport, usize);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(report, count) = self;
        if report.is_empty() {
            return f.write_str(NOTHING_SEEN);
        }
        Headline(report).fmt(f)?;
        let (at_peak, held) = ("at peak", "kept");
        write!(
            f,
            "\n{at_peak:>11} {:>6} {:>6} {held:>11} {:>6} {:>10}  layer",
            "share", "sum", "calls", "own time"
        )?;
        let mut sum = 0;
        for row in report.rows.iter().take(*count) {
            sum += row.at_peak.unwrap_or(0);
            write_row(row, sum, report.peak, f)?;
        }
        let left = report.rows.get(*count..).unwrap_or_default();
        if left.is_empty() {
            return Ok(());
        }
        let bytes = left.iter().map(|row| row.at_peak).sum();
        write!(
            f,
            "\n{:>11}  in {} more rows",
            bytes_text(bytes),
            left.len()
        )
    }
}

/// The work, its highest use, and how much of that is attributed.
struct Headline<'a>(&'a LayerReport);

impl fmt::Display for Headline<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(report) = self;
        if let Some(work) = report.work {
            write!(f, "{} {}, ", work.task, work.step + 1)?;
            match work.samples {
                0 => f.write_str("update: ")?,
                samples => write!(f, "micro-batch of {samples}: ")?,
            }
        }
        let Some(peak) = report.peak else {
            return f.write_str("memory is not counted on this device");
        };
        write!(f, "highest use {}", ByteSize(peak))?;
        if !report.peak_at.is_empty() {
            write!(f, " in {}", report.peak_at.join("."))?;
        }
        match report.attributed() {
            Some(share) => write!(f, "; {:.1} % attributed", share * 100.),
            None => Ok(()),
        }
    }
}

fn write_row(row: &LayerRow, sum: u64, peak: Option<u64>, f: &mut Formatter<'_>) -> fmt::Result {
    let share = |bytes: Option<u64>| match (bytes, peak) {
        (Some(bytes), Some(peak)) if peak > 0 => {
            format!("{:.1} %", bytes as f64 / peak as f64 * 100.)
        }
        _ => String::new(),
    };
    let held = row.held.map_or(String::new(), |held| {
        let sign = if held < 0 { "-" } else { "" };
        format!("{sign}{}", ByteSize(held.unsigned_abs()))
    });
    let (calls, time) = match row.calls {
        0 => Default::default(),
        calls => (calls.to_string(), time(row.own_time)),
    };
    write!(
        f,
        "\n{:>11} {:>6} {:>6} {held:>11} {calls:>6} {time:>10}  {}",
        row.at_peak
            .map_or(String::new(), |bytes| ByteSize(bytes).to_string()),
        share(row.at_peak),
        share(row.at_peak.map(|_| sum)),
        row.name()
    )
}

fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        seconds if seconds < 1. => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}
