use crate::error::{Cause, Error, MemoryReading, Phase, Resource, ResourceExhausted, Result};
use crate::memory::{DeviceMemory, PeakScope};

/// The use of memory since a piece of work began. Without a memory, nothing is known.
#[derive(Debug)]
pub(crate) struct Measured<'a>(pub(super) Option<(&'a DeviceMemory, PeakScope)>);

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
    pub(crate) fn check(&self, phase: impl Into<Option<Phase>>) -> Result<()> {
        let Some((memory, scope)) = &self.0 else {
            return Ok(());
        };
        let over = scope.peak().zip(memory.limit());
        if over.is_none_or(|(peak, limit)| peak <= limit) {
            return Ok(());
        }
        let resource = match memory.device().is_cpu() {
            true => Resource::HostMemory,
            false => Resource::DeviceMemory,
        };
        let mut found = ResourceExhausted::new(resource, Cause::Limit);
        found.phase = phase.into();
        let exhausted = self.exhausted(found.into(), None, None);
        Err(Error::ResourceExhausted(exhausted))
    }
}
