//! The memory that the work on this thread is measured against, for operations that choose between time and memory.

use std::cell::RefCell;

use super::device::DeviceMemory;

thread_local! {
    static AMBIENT: RefCell<Option<DeviceMemory>> = const { RefCell::new(None) };
}

/// Runs `work` with this memory as the one that [`ambient`] returns on this thread.
pub(crate) fn within<T>(memory: Option<&DeviceMemory>, work: impl FnOnce() -> T) -> T {
    let _outer = Restore(AMBIENT.replace(memory.cloned()));
    work()
}

/// The memory of the trainer or processor that runs on this thread, if it was given one.
pub(crate) fn ambient() -> Option<DeviceMemory> {
    AMBIENT.with_borrow(Clone::clone)
}

struct Restore(Option<DeviceMemory>);

impl Drop for Restore {
    fn drop(&mut self) {
        AMBIENT.set(self.0.take());
    }
}
