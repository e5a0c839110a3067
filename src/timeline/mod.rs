//! What happened when: a bounded record of the work, as a trace and as a page to look at.

mod mark;
mod page;
mod recorder;
mod row;
mod thin;
mod totals;
mod trace;

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::batch::{Observer, TrainingEvent};
use crate::error::{OutputError, Result};
use recorder::Recorder;

#[cfg(feature = "nvtx")]
pub use crate::nvtx::NvtxRanges;

/// A record of the work that a trainer or a [`BatchProcessor`](crate::BatchProcessor) does: steps, micro-batches, phases, peaks
/// and what happened to them.
///
/// Its memory is bounded, some 4 MiB: of a long run the latest phases and micro-batches are kept, and the steps of the whole run,
/// more coarsely the longer it gets (neighbouring steps are put together, their peaks are not lost). Handles are cheap to clone
/// and share one record.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::{BatchProcessor, Fixed, Timeline};
///
/// let timeline = Timeline::new();
/// let x = Tensor::arange(0f32, 64., &Device::Cpu)?;
/// let mut processor = BatchProcessor::new(Fixed::new(16)?).observer(timeline.clone());
/// processor.process(&x, |chunk, _| chunk.sqr()?.sum_all())?;
/// timeline.number("quality", 0.9); // whatever else is worth a curve
///
/// let mut trace = Vec::new();
/// timeline.write_trace(&mut trace)?; // for https://ui.perfetto.dev
/// let mut page = Vec::new();
/// timeline.write_page("sums of squares", &mut page)?; // for a browser
/// assert!(page.starts_with(b"<!doctype html>"));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// Times are the host's. On a device that works asynchronously, as a GPU does, a phase's time is that of queuing its work: the
/// record never waits for a device.
#[derive(Clone)]
pub struct Timeline {
    recorder: Arc<Mutex<Recorder>>,
}

impl Timeline {
    /// An empty record that begins now.
    pub fn new() -> Self {
        Self {
            recorder: Arc::new(Mutex::new(Recorder::new())),
        }
    }

    /// Notes a number of the caller's own at the present moment, such as a loss that was read: a curve on the page and a counter
    /// in the trace. Up to 8 names are kept; a number that is not finite is passed over.
    pub fn number(&self, name: &str, value: f64) {
        self.recorder.lock().number(name, value);
    }

    /// Writes the record in the Chrome trace format, which [Perfetto](https://ui.perfetto.dev), `chrome://tracing` and Speedscope
    /// open: spans for steps, micro-batches and phases, counters for memory in bytes, instants for what happened.
    ///
    /// # Errors
    /// [`OutputError`], where `to` cannot be written.
    pub fn write_trace(&self, to: &mut impl Write) -> Result<()> {
        // What is written is a copy: a slow disk must not stop the work that is being recorded.
        let recorder = self.recorder.lock().clone();
        trace::write(&recorder, to).map_err(|error| OutputError::of("a trace", &error).into())
    }

    /// Writes the record as a page for a browser: one file that needs no network. `title` stands on top.
    ///
    /// # Errors
    /// [`OutputError`], where `to` cannot be written.
    pub fn write_page(&self, title: &str, to: &mut impl Write) -> Result<()> {
        let recorder = self.recorder.lock().clone();
        page::write(&recorder, title, to).map_err(|error| OutputError::of("a page", &error).into())
    }

    /// [`write_trace`](Self::write_trace) to a file, which is replaced as a whole or not at all.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn save_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut bytes = Vec::new();
        self.write_trace(&mut bytes)?;
        Ok(crate::output::replace(path.as_ref(), &bytes)?)
    }

    /// [`write_page`](Self::write_page) to a file, which is replaced as a whole or not at all.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn save_page(&self, title: &str, path: impl AsRef<Path>) -> Result<()> {
        let mut bytes = Vec::new();
        self.write_page(title, &mut bytes)?;
        Ok(crate::output::replace(path.as_ref(), &bytes)?)
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for Timeline {
    fn observe(&self, moment: &TrainingEvent<'_>) {
        self.recorder.lock().note(moment);
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recorder = self.recorder.lock();
        f.debug_struct("Timeline")
            .field("steps", &recorder.totals.steps)
            .field("exhaustions", &recorder.totals.exhaustions)
            .finish_non_exhaustive()
    }
}
