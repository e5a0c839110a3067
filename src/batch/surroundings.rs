//! What layers are told by whoever runs them, and what recomputed regions tell.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use candle_core::Device;

use crate::error::{MemoryReading, Phase};
use crate::layers;
use crate::memory::DeviceMemory;
use crate::nn::scope::{self, Guard};
use crate::testing;

/// The surroundings of the work of an engine, or of a loop of the caller's own.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    memory: Option<DeviceMemory>,
    again: RefCell<Vec<Again>>,
}

/// The second run of a region, with its backward pass.
#[derive(Debug)]
pub(super) struct Again {
    pub(super) began: Instant,
    pub(super) elapsed: Duration,
    /// At its end.
    pub(super) memory: MemoryReading,
    pub(super) succeeded: bool,
}

impl Surroundings {
    /// With the memory that the work is measured against.
    pub(crate) fn new(memory: Option<&DeviceMemory>) -> Self {
        Self {
            memory: memory.cloned(),
            again: RefCell::default(),
        }
    }

    /// The second runs so far.
    pub(super) fn take_again(&self) -> Vec<Again> {
        self.again.take()
    }
}

impl scope::Surroundings for Surroundings {
    fn in_use(&self) -> Option<u64> {
        self.memory.as_ref()?.in_use()
    }

    fn room(&self, device: &Device) -> Option<u64> {
        let memory = self.memory.as_ref();
        memory
            .filter(|memory| memory.device().same_device(device))?
            .room()
    }

    fn place(&self) -> u64 {
        layers::place()
    }

    fn copies(&self) -> Guard {
        // The outputs' copies belong to the layer that ran.
        Box::new(layers::last())
    }

    fn begins_again(&self) -> candle_core::Result<Guard> {
        let phase = layers::phase(Phase::Recompute);
        testing::inject(Phase::Recompute)?;
        Ok(Box::new(phase))
    }

    fn runs_again(&self, place: u64) -> Guard {
        Box::new(layers::again(place))
    }

    fn ran_again(&self, began: Instant, succeeded: bool) {
        let memory = self.memory.as_ref().map(DeviceMemory::reading);
        self.again.borrow_mut().push(Again {
            began,
            elapsed: began.elapsed(),
            memory: memory.unwrap_or_default(),
            succeeded,
        });
    }
}
