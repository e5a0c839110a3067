use std::fmt;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;

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
    /// [`Monitor::failed_writes`](super::Monitor::failed_writes), and goes on with the next sample. A sink that panics is dropped;
    /// every further sample counts as failed.
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
    subscription: Option<Weak<()>>,
}

impl Output {
    pub(super) fn new(
        receiver: impl FnMut(&Source, &Sample) -> io::Result<()> + Send + 'static,
        subscription: Option<Weak<()>>,
    ) -> Self {
        Self {
            receiver: Some(Box::new(receiver)),
            is_failing: false,
            subscription,
        }
    }

    /// Hands a sample on. Returns whether it was received without an error.
    fn send(&mut self, source: &Source, sample: &Sample) -> bool {
        let Some(receiver) = &mut self.receiver else {
            return false;
        };
        // Unwind safety: after a panic nothing but its destructor sees the receiver's state.
        let received = catch_unwind(AssertUnwindSafe(|| receiver(source, sample)));
        let was_failing = mem::replace(&mut self.is_failing, !matches!(received, Ok(Ok(()))));
        match received {
            Ok(Err(error)) if !was_failing => tracing::warn!(%error, "samples cannot be written"),
            Ok(_) => {}
            Err(_) => {
                tracing::error!("a sink or callback of the monitor panicked and is dropped");
                let dropped = self.receiver.take();
                let _ = catch_unwind(AssertUnwindSafe(|| drop(dropped)));
            }
        }
        !self.is_failing
    }
}

/// Hands a sample to all outputs and drops those whose subscription has ended. Returns how many did not receive it.
pub(super) fn send(outputs: &Mutex<Vec<Output>>, source: &Source, sample: &Sample) -> u64 {
    // Taken out of the mutex, so that a listener may subscribe others.
    let mut list = mem::take(&mut *outputs.lock());
    let mut failed = 0;
    list.retain_mut(|output| {
        let subscription = output.subscription.as_ref();
        let is_wanted = subscription.is_none_or(|token| token.strong_count() > 0);
        if is_wanted && !output.send(source, sample) {
            failed += 1;
        }
        is_wanted
    });
    let mut added = outputs.lock();
    list.append(&mut added);
    *added = list;
    failed
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}
