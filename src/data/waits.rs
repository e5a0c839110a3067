//! How long this process has waited for data.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

static WAITS: Mutex<Waits> = Mutex::new(Waits {
    total: None,
    began: Vec::new(),
});

#[derive(Debug)]
struct Waits {
    /// `None` until somebody waits.
    total: Option<Duration>,
    /// Of the waits that have not ended.
    began: Vec<Instant>,
}

/// A wait; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Wait(Instant);

impl Wait {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        WAITS.lock().began.push(now);
        Self(now)
    }

    /// Ends it, and returns how long it took.
    pub(super) fn end(self) -> Duration {
        self.0.elapsed()
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut waits = WAITS.lock();
        let place = waits.began.iter().position(|began| *began == self.0);
        if let Some(place) = place {
            waits.began.swap_remove(place);
        }
        let total = waits.total.unwrap_or_default();
        waits.total = Some(total.saturating_add(self.0.elapsed()));
    }
}

/// The time that all threads of this process have waited for their loaders so far; `None` if there was none.
pub(crate) fn waited() -> Option<Duration> {
    let waits = WAITS.lock();
    let open: Duration = waits.began.iter().map(Instant::elapsed).sum();
    match waits.began.is_empty() {
        true => waits.total,
        false => Some(waits.total.unwrap_or_default().saturating_add(open)),
    }
}
