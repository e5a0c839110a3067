use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::sample::Sample;
use super::source::Source;

/// Writes samples somewhere, on the monitor's thread.
///
/// ```
/// use std::io;
/// use candle_headroom::Monitor;
/// use candle_headroom::monitor::{Sample, Sink, Source};
///
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
pub trait Sink: Send {
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

type Receiver = dyn FnMut(&Source, &Sample) -> io::Result<()> + Send;

/// A sink, a threshold's callback or a listener. If it panics, it is dropped, and the monitor goes on.
pub(super) struct Output {
    /// `None` after a panic.
    receiver: Option<Box<Receiver>>,
    is_failing: bool,
    /// Alive as long as a listener's subscription; `None` for sinks and thresholds.
    pub(super) subscription: Option<Weak<()>>,
}

impl Output {
    fn new(receiver: Box<Receiver>) -> Self {
        Self {
            receiver: Some(receiver),
            is_failing: false,
            subscription: None,
        }
    }

    pub(super) fn sink(mut sink: impl Sink + 'static) -> Self {
        Self::new(Box::new(move |source, sample| sink.write(source, sample)))
    }

    pub(super) fn callback(mut f: impl FnMut(&Source, &Sample) + Send + 'static) -> Self {
        Self::new(Box::new(move |source, sample| {
            f(source, sample);
            Ok(())
        }))
    }

    fn is_wanted(&self) -> bool {
        let subscription = self.subscription.as_ref();
        subscription.is_none_or(|subscription| subscription.strong_count() > 0)
    }

    /// Hands a sample on. Returns whether it was received without an error.
    fn send(&mut self, source: &Source, sample: &Sample) -> bool {
        let Some(receiver) = &mut self.receiver else {
            return false;
        };
        let was_failing = self.is_failing;
        // Unwind safety: after a panic nothing but its destructor sees the receiver's state.
        let received = catch_unwind(AssertUnwindSafe(|| receiver(source, sample)));
        self.is_failing = !matches!(received, Ok(Ok(())));
        match received {
            Ok(Err(error)) if !was_failing => tracing::warn!(%error, "samples cannot be written"),
            Ok(_) => {}
            Err(_) => {
                tracing::error!(
                    "a callback or sink of the monitor panicked and is not called again"
                );
                let dropped = self.receiver.take();
                let _ = catch_unwind(AssertUnwindSafe(|| drop(dropped)));
            }
        }
        !self.is_failing
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

/// The sinks, thresholds and listeners of a monitor.
pub(super) struct Outputs {
    list: Mutex<Vec<Output>>,
    failed: AtomicU64,
}

impl Outputs {
    pub(super) fn new(outputs: Vec<Output>) -> Self {
        Self {
            list: Mutex::new(outputs),
            failed: AtomicU64::new(0),
        }
    }

    pub(super) fn add(&self, output: Output) {
        self.list.lock().push(output);
    }

    /// Drops all of them.
    pub(super) fn clear(&self) {
        let outputs = std::mem::take(&mut *self.list.lock());
        drop(outputs);
    }

    /// How many samples were not received.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    pub(super) fn send(&self, source: &Source, sample: &Sample) {
        // Taken out of the mutex, so that a listener may subscribe others.
        let mut outputs = std::mem::take(&mut *self.list.lock());
        for output in &mut outputs {
            if output.is_wanted() && !output.send(source, sample) {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        outputs.retain(Output::is_wanted);
        let mut added = self.list.lock();
        outputs.append(&mut added);
        *added = outputs;
    }
}
