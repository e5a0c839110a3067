use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::device::DeviceMemory;

/// The peak of a device's memory since the scope's creation; from [`DeviceMemory::peak_scope`].
///
/// Scopes may nest and overlap, in one thread or several; each measures the whole process's use of the device.
#[derive(Debug)]
#[must_use = "a scope that is dropped at once measures nothing"]
pub struct PeakScope {
    memory: DeviceMemory,
    start: Option<u64>,
    highest: Arc<AtomicU64>,
}

impl DeviceMemory {
    /// Measures the peak from now on, while the scope lives.
    pub fn peak_scope(&self) -> PeakScope {
        let start = self.in_use();
        let highest = Arc::new(AtomicU64::new(start.unwrap_or(0)));
        self.collect_peak();
        let mut peaks = self.shared.peaks.lock();
        peaks.scopes.push(Arc::downgrade(&highest));
        PeakScope {
            memory: self.clone(),
            start,
            highest,
        }
    }
}

impl PeakScope {
    /// Bytes in use when the scope began.
    pub fn start(&self) -> Option<u64> {
        self.start
    }

    /// The highest use since the scope began, in bytes; `None` if it is not counted.
    pub fn peak(&self) -> Option<u64> {
        self.memory.collect_peak();
        self.start.map(|_| self.highest.load(Relaxed))
    }
}
