use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Work in a thread of its own.
#[derive(Debug)]
pub(crate) struct Task<T>(Receiver<T>);

/// Why a [`Task`] has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// The thread still runs and is left behind.
    TimedOut,
    /// The work panicked, or no thread could be started.
    Stopped,
}

impl<T: Send + 'static> Task<T> {
    pub(crate) fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::Builder::new().name(name.to_owned());
        // Without a thread the sender is dropped at once, which the receiver notices.
        let _ = thread.spawn(move || {
            // Fails if nobody waits any longer.
            let _ = sender.send(work());
        });
        Self(receiver)
    }

    /// Waits for the result for at most `limit`.
    pub(crate) fn wait(self, limit: Duration) -> Result<T, Unfinished> {
        self.0.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => Unfinished::TimedOut,
            RecvTimeoutError::Disconnected => Unfinished::Stopped,
        })
    }
}

/// The result of `work`, or `None` if it takes longer than `limit`.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    Task::start("headroom-nvml", work).wait(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_hangs_or_panics_is_left_behind() {
        let (short, limit) = (Duration::from_millis(20), Duration::from_secs(60));
        assert_eq!(within(limit, || 7), Some(7));
        let hanging = Task::start("hangs", || thread::sleep(Duration::MAX));
        assert_eq!(hanging.wait(short), Err(Unfinished::TimedOut));
        let panicking = Task::start("panics", || -> u8 { panic!("on purpose") });
        assert_eq!(panicking.wait(limit), Err(Unfinished::Stopped));
    }
}
