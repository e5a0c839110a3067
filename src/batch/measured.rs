use crate::error::{Error, MemoryReading, Phase, ResourceExhausted, Result};
use crate::memory::{DeviceMemory, PeakScope};

/// The use of memory since a piece of work began. Without a memory, nothing is known.
#[derive(Debug)]
pub(crate) struct Measured<'a>(Option<(&'a DeviceMemory, PeakScope)>);

impl<'a> Measured<'a> {
    pub(crate) fn begin(memory: Option<&'a DeviceMemory>) -> Self {
        Self(memory.map(|memory| (memory, memory.peak_scope())))
    }

    /// Returns the use when the work began, in bytes.
    pub(super) fn start(&self) -> Option<u64> {
        self.0.as_ref()?.1.start()
    }

    /// Returns the highest use since then, in bytes.
    pub(crate) fn peak(&self) -> Option<u64> {
        self.0.as_ref()?.1.peak()
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        self.0.as_ref()?.0.limit()
    }

    /// Returns the memory now, with the peak since the work began.
    pub(super) fn reading(&self) -> MemoryReading {
        let reading = self.0.as_ref().map(|(memory, scope)| MemoryReading {
            peak: scope.peak(),
            ..memory.reading()
        });
        reading.unwrap_or_default()
    }

    /// Fails if the use went over a soft limit. Called before work that would use more.
    pub(crate) fn check(&self, phase: Phase) -> Result<()> {
        let checked = (self.0.as_ref()).map_or(Ok(()), |(memory, scope)| memory.check(scope));
        checked.map_err(|exhausted| Error::ResourceExhausted(exhausted).in_phase(phase))
    }

    /// Adds the memory's state, and the cause that follows from it if work of this size is known to `need` so many bytes.
    pub(crate) fn describe(&self, need: Option<u64>, exhausted: &mut ResourceExhausted) {
        if let Some((memory, scope)) = &self.0 {
            memory.describe(scope, need, exhausted);
        }
    }
}
