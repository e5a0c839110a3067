//! The use of memory by a piece of work, and the exhaustion that observers, policies and callers get: candle's error says only that an
//! allocation failed.

use crate::error::{
    Cause, Error, Holding, MemoryReading, Phase, Remedy, Resource, ResourceExhausted, Result,
    device_name,
};
use crate::memory::{DeviceMemory, PeakScope};

/// The use of memory since a piece of work began. Without a memory, nothing is known.
#[derive(Debug)]
pub(crate) struct Measured(Option<PeakScope>);

impl Measured {
    pub(crate) fn begin(memory: Option<&DeviceMemory>) -> Self {
        Self(memory.map(DeviceMemory::peak_scope))
    }

    /// Returns the use when the work began, in bytes.
    pub(super) fn start(&self) -> Option<u64> {
        self.0.as_ref()?.start()
    }

    /// Returns the highest use since then, in bytes.
    pub(crate) fn peak(&self) -> Option<u64> {
        self.0.as_ref()?.peak()
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        self.0.as_ref()?.memory().limit()
    }

    /// Returns the memory now, with the peak since the work began.
    pub(super) fn reading(&self) -> MemoryReading {
        let reading = self.0.as_ref().map(|scope| MemoryReading {
            peak: scope.peak(),
            ..scope.memory().reading()
        });
        reading.unwrap_or_default()
    }

    /// Fails if the use went over a soft limit. Called before work that would use more.
    pub(crate) fn check(&self, phase: impl Into<Option<Phase>>) -> Result<()> {
        let over = self.peak().zip(self.limit());
        match over.is_some_and(|(peak, limit)| peak > limit) {
            true => Err(self.foreseen(Cause::Limit, phase.into()).into()),
            false => Ok(()),
        }
    }

    /// Builds the exhaustion of work that is stopped before an allocation fails.
    pub(crate) fn foreseen(&self, cause: Cause, phase: Option<Phase>) -> ResourceExhausted {
        let mut device = self.0.iter().map(|scope| scope.memory().device());
        let resource = match device.any(|device| !device.is_cpu()) {
            true => Resource::DeviceMemory,
            false => Resource::HostMemory,
        };
        let mut found = ResourceExhausted::new(resource, cause);
        found.phase = phase;
        *self.exhausted(found.into(), None, None)
    }

    /// Builds the exhaustion from what the error says (`found`) and what is known here: the memory's state, the cause that follows from it
    /// where such work is known to `need` so many bytes, and what the training holds (`None` if that is not known here).
    pub(crate) fn exhausted(
        &self,
        found: Box<ResourceExhausted>,
        held: Option<Vec<Holding>>,
        need: Option<u64>,
    ) -> Box<ResourceExhausted> {
        let mut exhausted = found;
        if let Some(scope) = &self.0 {
            let memory = scope.memory();
            let (mut bytes, cause) = memory.refused(scope, need);
            // An allocator of the caller's may say it; candle's errors do not.
            bytes.requested = exhausted.bytes.requested;
            exhausted.device = Some(device_name(memory.device().location()));
            exhausted.bytes = bytes;
            if exhausted.cause == Cause::Unknown && exhausted.resource == Resource::DeviceMemory {
                exhausted.cause = cause;
            }
        }
        exhausted.held = held.unwrap_or(exhausted.held);
        exhausted
    }
}

/// Whether the cause is likely to pass: another process or another part of this one holds the memory, or the free memory is in pieces.
pub(super) fn is_passing(exhausted: &ResourceExhausted) -> bool {
    let mut held = exhausted.held.iter();
    held.any(|held| held.what == Holding::OTHER)
        || matches!(exhausted.cause, Cause::Neighbour | Cause::Fragmented)
}

/// The error of an exhaustion after which nothing is tried again; one sample never fits then, unless it `may_fit` without what was lost.
/// Who else uses the device is asked only here, because the answer may take seconds.
pub(crate) fn ended(
    mut exhausted: Box<ResourceExhausted>,
    may_fit: bool,
    remedies: Vec<Remedy>,
    memory: Option<&DeviceMemory>,
) -> Error {
    let is_counted = exhausted.cause == Cause::IndexRange;
    if exhausted.micro_batch == Some(1) && !may_fit && !is_passing(&exhausted) && !is_counted {
        exhausted.cause = Cause::NeverFits;
    }
    exhausted.remedies.extend(remedies);
    if let Some(memory) = memory {
        exhausted.neighbours = memory.neighbours();
        let in_the_way = match exhausted.cause {
            Cause::Neighbour | Cause::DeviceFull => true,
            Cause::NeverFits => exhausted.bytes.limit.is_none(),
            _ => false,
        };
        if let Some(neighbour) = exhausted.neighbours.first().filter(|_| in_the_way) {
            let remedy = Remedy::new(format!("the GPU without {neighbour}"), neighbour.bytes);
            exhausted.remedies.push(remedy);
        }
    }
    Error::ResourceExhausted(exhausted)
}
