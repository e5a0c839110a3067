//! Where samples go as they are taken.

mod csv;
#[cfg(feature = "metrics")]
mod gauges;
mod json_lines;

use std::fmt::Debug;
use std::io;

pub use csv::CsvSink;
#[cfg(feature = "metrics")]
pub use gauges::MetricsSink;
pub use json_lines::JsonLinesSink;
pub(crate) use json_lines::write_object;

use super::keeper::guard;
use super::{Sample, Source};

/// Somebody who writes samples down, on the monitor's thread.
///
/// ```
/// use std::io;
/// use candle_headroom::{Monitor, Sample, Sink, Source};
///
/// #[derive(Debug)]
/// struct Printed;
///
/// impl Sink for Printed {
///     fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
///         println!("{source}: {sample}");
///         Ok(())
///     }
/// }
///
/// let monitor = Monitor::builder().sink(Printed).start()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Sink: Debug + Send {
    /// Writes one sample.
    ///
    /// # Errors
    /// Whatever keeps it from being written. The monitor tells `tracing` when writing begins to fail, counts what is lost
    /// ([`Monitor::failed_writes`](super::Monitor::failed_writes)), and goes on: the next sample is tried again.
    ///
    /// A sink that panics is dropped, and what it would have written is counted as lost.
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()>;
}

const _: Option<&dyn Sink> = None; // object-safe

/// A sink, as long as it has not panicked, and whether it was told that it fails.
#[derive(Debug)]
pub(super) struct Outlet {
    sink: Option<Box<dyn Sink>>,
    is_failing: bool,
}

impl Outlet {
    pub(in crate::monitor) fn new(sink: impl Sink + 'static) -> Self {
        Self {
            sink: Some(Box::new(sink)),
            is_failing: false,
        }
    }

    /// Whether it was written.
    pub(super) fn write(&mut self, source: &Source, sample: &Sample) -> bool {
        let was_failing = self.is_failing;
        // Unless it comes back and says otherwise.
        self.is_failing = true;
        let is_failing = &mut self.is_failing;
        guard(&mut self.sink, |sink| match sink.write(source, sample) {
            Ok(()) => *is_failing = false,
            Err(error) if !was_failing => {
                tracing::warn!(%error, ?sink, "samples cannot be written");
            }
            Err(_) => {}
        });
        !self.is_failing
    }
}
