//! A thread that looks at a source for the monitor, which does not wait for it for ever.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::source::Look;
use super::{Health, Sample};

/// What monitor and looker hand each other.
#[derive(Debug, Default)]
struct Tray {
    asked: Option<Sample>,
    answer: Option<Sample>,
    /// When the present call began, since the monitor's start.
    busy_since: Option<Duration>,
    is_closed: bool,
}

#[derive(Debug)]
pub(super) struct Desk {
    tray: Arc<(Mutex<Tray>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Desk {
    pub(super) fn open(mut looker: impl Look + 'static) -> std::io::Result<Self> {
        let tray = Arc::new((Mutex::new(Tray::default()), Condvar::new()));
        let its = Arc::clone(&tray);
        let thread = thread::Builder::new().name("headroom-gpu".to_owned());
        let thread = thread.spawn(move || {
            let (tray, changed) = &*its;
            let mut guard = tray.lock();
            while !guard.is_closed {
                let Some(mut sample) = guard.asked.take() else {
                    changed.wait(&mut guard);
                    continue;
                };
                drop(guard);
                let began = Instant::now();
                looker.look(&mut sample);
                sample.took = began.elapsed();
                guard = tray.lock();
                guard.answer = Some(sample);
                guard.busy_since = None;
                changed.notify_all();
            }
        })?;
        Ok(Self {
            tray,
            thread: Some(thread),
        })
    }

    /// Asks for a sample, unless the last call has not come back.
    pub(super) fn ask(&self, blank: Sample) {
        let (tray, changed) = &*self.tray;
        let mut tray = tray.lock();
        if tray.busy_since.is_none() {
            tray.answer = None;
            tray.asked = Some(blank);
            tray.busy_since = Some(blank.at);
            changed.notify_all();
        }
    }

    /// What was seen, or that nobody came back within `patience`; a call that was hanging before is not waited for again.
    pub(super) fn answer(&self, blank: Sample, patience: Duration) -> Sample {
        let (tray, changed) = &*self.tray;
        let mut tray = tray.lock();
        if tray.busy_since == Some(blank.at) {
            let is_busy = |tray: &mut Tray| tray.busy_since.is_some();
            changed.wait_while_for(&mut tray, is_busy, patience);
        }
        match (tray.answer.take(), tray.busy_since) {
            (Some(answer), None) => answer,
            (_, since) => Sample {
                health: Health::Hanging,
                took: (blank.at + patience).saturating_sub(since.unwrap_or(blank.at)),
                ..blank
            },
        }
    }
}

impl Drop for Desk {
    /// Waits for the thread, unless it hangs: then it ends by itself when its call comes back, if ever.
    fn drop(&mut self) {
        let (tray, changed) = &*self.tray;
        let is_free = {
            let mut tray = tray.lock();
            tray.is_closed = true;
            changed.notify_all();
            tray.busy_since.is_none()
        };
        if let Some(thread) = self.thread.take().filter(|_| is_free) {
            // It has not panicked: it runs nothing of the caller's.
            let _ = thread.join();
        }
    }
}
