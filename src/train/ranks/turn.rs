use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::word::{CALL, Word};
use crate::distributed::Group;
use crate::error::Error;

/// A step in progress. The other ranks wait for this one's word: if the step ends without one, also by a panic, it tells them so.
#[derive(Debug)]
pub(in crate::train) struct Turn {
    group: Group,
    has_spoken: Arc<AtomicBool>,
}

impl Turn {
    pub(super) fn new(group: &Group, has_spoken: &Arc<AtomicBool>) -> Self {
        has_spoken.store(false, Ordering::Relaxed);
        Self {
            group: group.clone(),
            has_spoken: Arc::clone(has_spoken),
        }
    }

    /// Ends the step with this error.
    pub(in crate::train) fn fail(self, error: &Error) {
        self.tell(error.to_string());
    }

    fn tell(&self, reason: String) {
        if self.has_spoken.swap(true, Ordering::Relaxed) {
            return;
        }
        // A group that has ended is this rank's next error. Its own matters more now.
        let _ = Word::failed(reason).gather(&self.group, CALL);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell("it panicked".to_owned());
        }
    }
}
