use std::sync::Arc;

use super::backing::Backing;

/// The peak of a device's memory since the scope's creation; from [`DeviceMemory::peak_scope`](super::DeviceMemory::peak_scope).
///
/// Scopes may nest and overlap, in one thread or several; each measures the whole process's use of the device.
///
/// ```
/// let memory = candle_headroom::DeviceMemory::host().open()?;
/// let scope = memory.peak_scope();
/// // … work …
/// match (scope.start(), scope.peak()) {
///     (Some(start), Some(peak)) => println!("{} bytes at most", peak - start),
///     _ => println!("not counted: the tracking allocator is not installed"),
/// }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a scope that is dropped at once measures nothing"]
pub struct PeakScope {
    memory: Arc<dyn Backing>,
    /// The scope's number and its use at the start; `None` if the use is not counted.
    open: Option<(u64, u64)>,
}

impl PeakScope {
    pub(super) fn new(memory: Arc<dyn Backing>) -> Self {
        let open = memory.in_use().map(|start| {
            let mut scopes = memory.scopes().lock();
            scopes.collect(memory.take_peak());
            (scopes.begin(start), start)
        });
        Self { memory, open }
    }

    /// Bytes in use when the scope began.
    pub fn start(&self) -> Option<u64> {
        self.open.map(|(_, start)| start)
    }

    /// The highest use since the scope began, in bytes; `None` if it is not counted.
    pub fn peak(&self) -> Option<u64> {
        let (id, _) = self.open?;
        let mut scopes = self.memory.scopes().lock();
        scopes.collect(self.memory.take_peak());
        scopes.peak(id)
    }
}

impl Drop for PeakScope {
    fn drop(&mut self) {
        if let Some((id, _)) = self.open {
            let mut scopes = self.memory.scopes().lock();
            scopes.collect(self.memory.take_peak());
            scopes.end(id);
        }
    }
}
