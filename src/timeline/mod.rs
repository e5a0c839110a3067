//! What happened when: a bounded record of a run, written as a page or a trace.
//!
//! A [`Timeline`] observes trainers and processors. Its record is bounded, so a run of any length fits; it never waits for a device, and
//! writing it does not stop the work, because a copy is written. A file is replaced as a whole or not at all. A trace holds the record
//! itself beside the events for viewers, so [`SavedTrace`] makes the same page of it later. With several ranks, [`Timeline::save_all`]
//! puts all records together, and [`RankTimes`] says which rank the others wait for. `NvtxRanges` (feature `nvtx`) shows the same phases
//! in NVIDIA's profilers.

mod page;
mod ranks;
mod recorder;
mod rows;
#[cfg(feature = "distributed")]
mod together;
mod trace;

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

pub use ranks::{RankTime, RankTimes};
pub use trace::SavedTrace;

use crate::batch::{Observer, TrainingEvent};
use crate::error::{OutputError, Result};
use crate::incident::Incident;
#[cfg(feature = "layers")]
use crate::layers::{LayerReport, RowKind};
use crate::output::save;
use recorder::Recorder;
#[cfg(feature = "layers")]
use rows::{LayerRow, Layers};

/// Records the work of a trainer or a [`BatchProcessor`](crate::batch::BatchProcessor): steps, micro-batches, phases, memory, events.
///
/// The record takes at most about 4 MiB. It keeps the latest phases and micro-batches, and the steps of the whole run: in a long run
/// neighbouring steps are merged, keeping their highest peak. Clones share one record. Times are the host's: on a GPU a phase's time
/// is that of queuing its work, because the record never waits for a device.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::Timeline;
/// use candle_headroom::batch::{BatchProcessor, Fixed};
///
/// let timeline = Timeline::new();
/// let x = Tensor::arange(0f32, 64., &Device::Cpu)?; // (64,)
/// let mut processor = BatchProcessor::builder(Fixed::new(16)?).observer(timeline.clone()).build();
/// processor.process(&x, |chunk, _| chunk.sqr()?.sum_all())?;
/// timeline.number("quality", 0.9); // a curve of your own
/// timeline.note("the cache is full"); // a label above the charts
/// let mut trace = Vec::new();
/// timeline.write_trace(&mut trace)?; // for https://ui.perfetto.dev
/// let mut page = Vec::new();
/// timeline.write_page("sums of squares", &mut page)?; // for a browser
/// assert!(page.starts_with(b"<!doctype html>"));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Timeline {
    recorder: Arc<Mutex<Recorder>>,
}

impl Timeline {
    /// An empty record that begins now.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    ///
    /// let timeline = Timeline::new();
    /// let clone = timeline.clone(); // for a trainer's `.observer(…)`: clones share one record
    /// clone.note("epoch 1");
    /// let mut page = Vec::new();
    /// timeline.write_page("my run", &mut page)?;
    /// assert!(String::from_utf8_lossy(&page).contains("epoch 1"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a number at the current time, such as a loss: a curve on the page and a counter in the trace. Up to 8 names are
    /// kept, and a number that is not finite is ignored.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    ///
    /// let timeline = Timeline::new();
    /// timeline.number("validation loss", 0.5);
    /// let mut trace = Vec::new();
    /// timeline.write_trace(&mut trace)?;
    /// assert!(String::from_utf8_lossy(&trace).contains("validation loss"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn number(&self, name: &str, value: f64) {
        self.recorder.lock().number(name, value);
    }

    /// Records a text at the current time: a label on the page and an instant in the trace. The latest 64 are kept, of each the first line, up
    /// to 1 KiB.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    ///
    /// let timeline = Timeline::new();
    /// timeline.note("the learning rate was halved");
    /// let mut trace = Vec::new();
    /// timeline.write_trace(&mut trace)?;
    /// assert!(String::from_utf8_lossy(&trace).contains("the learning rate was halved"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn note(&self, text: &str) {
        self.recorder.lock().note(text);
    }

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
    /// timeline.layers(&layers.report());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    #[cfg(feature = "layers")]
    pub fn layers(&self, report: &LayerReport) {
        /// The largest rows are enough to see where the memory is.
        const MOST: usize = 64;
        let folded = report.folded();
        let rows = folded.rows.iter().take(MOST).map(|row| LayerRow {
            name: row.name(),
            is_layer: row.kind == RowKind::Layer,
            at_peak: row.at_peak,
            held: row.held,
            calls: row.calls,
            time: recorder::microseconds(row.own_time),
        });
        let layers = Layers {
            title: folded.title(),
            peak: folded.peak,
            rows: rows.collect(),
        };
        self.recorder.lock().layers = (!folded.is_empty()).then_some(layers);
    }

    /// Writes the record in the Chrome trace format, which [Perfetto](https://ui.perfetto.dev), `chrome://tracing` and Speedscope
    /// open: spans for steps, micro-batches and phases, counters for memory in bytes, and instants for events. [`SavedTrace`] reads it back.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    ///
    /// let mut trace = Vec::new();
    /// Timeline::new().write_trace(&mut trace)?;
    /// let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
    /// assert!(trace["traceEvents"].is_array());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutputError`] if `to` fails.
    pub fn write_trace(&self, to: &mut impl Write) -> Result<()> {
        let written = to.write_all(trace::write(&self.copy()).as_bytes());
        written.map_err(|error| OutputError::of("a trace", &error).into())
    }

    /// Writes the record as a page for a browser: one file that needs no network. `title` is its heading.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    ///
    /// let mut page = Vec::new();
    /// Timeline::new().write_page("my run", &mut page)?;
    /// let page = String::from_utf8(page).unwrap();
    /// assert!(page.starts_with("<!doctype html>") && page.contains("my run"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutputError`] if `to` fails.
    pub fn write_page(&self, title: &str, to: &mut impl Write) -> Result<()> {
        let written = to.write_all(page::write(&self.copy(), title, None).as_bytes());
        written.map_err(|error| OutputError::of("a page", &error).into())
    }

    /// Writes a trace to a file, which is replaced as a whole or not at all; see [`write_trace`](Self::write_trace).
    ///
    /// ```
    /// use candle_headroom::Timeline;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// Timeline::new().save_trace(folder.join("run.json"))?;
    /// let trace = std::fs::read_to_string(folder.join("run.json")).unwrap();
    /// assert!(trace.contains("\"traceEvents\""));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn save_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        save(path.as_ref(), &trace::write(&self.copy()))
    }

    /// Writes a page to a file, which is replaced as a whole or not at all; see [`write_page`](Self::write_page).
    ///
    /// ```
    /// use candle_headroom::Timeline;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// Timeline::new().save_page("my run", folder.join("run.html"))?;
    /// let page = std::fs::read_to_string(folder.join("run.html")).unwrap();
    /// assert!(page.contains("my run"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn save_page(&self, title: &str, path: impl AsRef<Path>) -> Result<()> {
        save(path.as_ref(), &page::write(&self.copy(), title, None))
    }

    /// A copy, so that writing the record does not stop the work that is being recorded.
    fn copy(&self) -> Recorder {
        self.recorder.lock().copy()
    }
}

impl Observer for Timeline {
    fn observe(&self, event: &TrainingEvent<'_>) {
        // Before the lock: an external error's `Display` may use this timeline.
        let incident = Incident::of(event);
        self.recorder.lock().record(event, incident);
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").finish_non_exhaustive()
    }
}

/// Shows batches and their phases as [NVTX](https://github.com/NVIDIA/NVTX) ranges, so that Nsight Systems groups the kernels of
/// each forward pass, backward pass and update. Retries, changes of size and exhaustions are marks.
///
/// A batch is a range such as `training 12`; each phase of a micro-batch is a range such as `forward` within it. All are in the
/// default domain, on the thread that works. Without a profiler a range costs formatting its name. The feature `nvtx` compiles
/// NVIDIA's headers and needs a C compiler.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::batch::{BatchProcessor, Fixed};
/// use candle_headroom::timeline::NvtxRanges;
///
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?; // (10,)
/// let mut processor = BatchProcessor::builder(Fixed::new(4)?).observer(NvtxRanges::new()).build();
/// processor.process(&x, |_, _| Ok(()))?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[cfg(feature = "nvtx")]
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct NvtxRanges;

#[cfg(feature = "nvtx")]
impl NvtxRanges {
    /// An observer for a trainer or a processor.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::batch::{BatchProcessor, Fixed};
    /// use candle_headroom::timeline::NvtxRanges;
    ///
    /// let x = Tensor::arange(0f32, 10., &Device::Cpu)?; // (10,)
    /// let mut processor = BatchProcessor::builder(Fixed::new(4)?).observer(NvtxRanges::new()).build();
    /// // In Nsight Systems: a range `processing 0` with three ranges `forward`.
    /// assert_eq!(processor.process(&x, |_, _| Ok(()))?.sizes, [4, 4, 2]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn new() -> Self {
        Self
    }
}

#[cfg(feature = "nvtx")]
impl Observer for NvtxRanges {
    fn observe(&self, event: &TrainingEvent<'_>) {
        use crate::batch::EventKind;
        use crate::error::Phase;

        match event.kind {
            EventKind::BatchBegan { .. } => {
                ::nvtx::range_push!("{} {}", event.task, event.step);
            }
            EventKind::PhaseBegan(phase) => {
                ::nvtx::range_push!("{}", phase);
            }
            // Reported once it is over, within the backward pass.
            EventKind::PhaseEnded {
                phase: Phase::Recompute,
                ..
            } => {}
            EventKind::PhaseEnded { .. }
            | EventKind::BatchEnded { .. }
            | EventKind::BatchFailed(_) => {
                ::nvtx::range_pop!();
            }
            EventKind::Exhausted(exhausted) => mark(exhausted),
            EventKind::Happened(event) => mark(event),
            EventKind::MicroBatchEnded { .. } => {}
        }
    }
}

#[cfg(feature = "nvtx")]
fn mark(event: &dyn fmt::Display) {
    // C ends a text at its first zero, and a driver's message may contain one.
    ::nvtx::mark!("{}", event.to_string().replace('\0', ""));
}
