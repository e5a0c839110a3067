use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::word::CALL;
use crate::distributed::Group;
use crate::error::Error;

/// How far this rank's update has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The other ranks have its status message.
    pub(super) has_spoken: AtomicBool,
    /// None of them waits for anything more.
    pub(super) is_over: AtomicBool,
}

/// A step in progress. The other ranks wait for this one's status message, and then for the end of the exchange: if the step ends before, also by a
/// panic, it notifies them.
#[derive(Debug)]
pub(in crate::train) struct Turn {
    group: Group,
    progress: Arc<Progress>,
}

impl Turn {
    pub(super) fn new(group: &Group, progress: &Arc<Progress>) -> Self {
        progress.has_spoken.store(false, Ordering::Relaxed);
        progress.is_over.store(false, Ordering::Relaxed);
        Self {
            group: group.clone(),
            progress: Arc::clone(progress),
        }
    }

    /// Ends the step with this error.
    pub(in crate::train) fn fail(self, error: &Error) {
        self.tell(error.to_string());
    }

    fn tell(&self, reason: String) {
        if self.progress.has_spoken.swap(true, Ordering::Relaxed) {
            return;
        }
        self.group.refuse(CALL, reason);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !std::thread::panicking() || self.progress.is_over.load(Ordering::Relaxed) {
            return;
        }
        if self.progress.has_spoken.load(Ordering::Relaxed) {
            // The others wait for gradients or parameters that do not come any more.
            let reason = "it panicked after its status message, in the exchange or the update";
            self.group.control().fail(reason);
        }
        self.tell("it panicked".to_owned());
    }
}
