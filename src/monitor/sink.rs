use std::fmt::Debug;
use std::io;

use super::callback::Callback;
use super::sample::Sample;
use super::source::Source;

/// Writes samples somewhere, on the monitor's thread.
///
/// ```
/// use std::io;
/// use candle_headroom::Monitor;
/// use candle_headroom::monitor::{Sample, Sink, Source};
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
    /// Any reason why the sample cannot be written. The monitor logs the first failure in a row with `tracing`, counts each in
    /// [`Monitor::failed_writes`](super::Monitor::failed_writes), and goes on with the next sample.
    ///
    /// A sink that panics is dropped; every further sample counts as failed.
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()>;
}

const _: Option<&dyn Sink> = None; // object-safe

#[derive(Debug)]
pub(super) struct Outlet {
    sink: Callback<dyn Sink>,
    is_failing: bool,
}

impl Outlet {
    pub(super) fn new(sink: impl Sink + 'static) -> Self {
        Self {
            sink: Callback::new(Box::new(sink)),
            is_failing: false,
        }
    }

    /// Returns whether the sample was written.
    pub(super) fn write(&mut self, source: &Source, sample: &Sample) -> bool {
        let was_failing = self.is_failing;
        let written = self.sink.call(|sink| {
            let written = sink.write(source, sample);
            if let (Err(error), false) = (&written, was_failing) {
                tracing::warn!(%error, ?sink, "samples cannot be written");
            }
            written.is_ok()
        });
        self.is_failing = written != Some(true);
        !self.is_failing
    }
}
