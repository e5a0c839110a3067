//! The layers that held the memory, as a section of the page.

use super::handle::Timeline;
use super::recorder::microseconds;
use super::rows::{LayerRow, Layers};
use crate::layers::{LayerReport, RowKind};

/// The largest rows are enough to see where the memory is.
const MOST: usize = 64;

impl Timeline {
    /// Records which layers held the memory: a section of the page, which the next report replaces. Numbered layers are put together, as
    /// in `block.*.mlp`.
    ///
    /// ```
    /// use candle_headroom::layers::LayerMemory;
    /// use candle_headroom::{DeviceMemory, Timeline};
    ///
    /// let layers = LayerMemory::new(&DeviceMemory::host().open()?);
    /// let timeline = Timeline::new();
    /// // … train, with `.observer(timeline.clone())` …
    /// timeline.layers(&layers.highest());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn layers(&self, report: &LayerReport) {
        let folded = report.folded();
        let rows = folded.rows.iter().take(MOST).map(|row| LayerRow {
            name: row.name(),
            is_layer: row.kind == RowKind::Layer,
            at_peak: row.at_peak,
            held: row.held,
            calls: row.calls,
            time: microseconds(row.own_time),
        });
        let layers = Layers {
            title: folded.title(),
            peak: folded.peak,
            rows: rows.collect(),
        };
        self.recorder.lock().layers = (!folded.is_empty()).then_some(layers);
    }
}
