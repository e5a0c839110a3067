//! Calls into a driver in trouble may never come back.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// What `work` comes to, or `None` where it takes longer than `patience`: it is then left behind in its thread, since nothing can end
/// it from outside.
pub(crate) fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::Builder::new().name("headroom-nvml".to_owned());
    let started = thread.spawn(move || {
        // Nobody may be waiting any longer.
        let _ = sender.send(work());
    });
    started.ok()?;
    receiver.recv_timeout(patience).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_that_hangs_is_left_behind() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let began = Instant::now();
        let hangs = || -> u8 {
            loop {
                thread::park();
            }
        };
        assert_eq!(within(Duration::from_millis(20), hangs), None);
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
