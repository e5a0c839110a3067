//! Regions that models mark with `nn::recompute`: what surrounds them, and what their second runs did.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use candle_core::Device;

use crate::error::{MemoryReading, Phase};
use crate::layers;
use crate::memory::DeviceMemory;
use crate::nn::scope::{self, Guard};
use crate::testing;

pub(crate) use crate::nn::backward;
pub(crate) use crate::nn::scope::{Held, Watched, frozen, watch};
pub(crate) use crate::nn::seeded;

/// The second run of a region, with its backward pass.
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) began: Instant,
    pub(crate) elapsed: Duration,
    /// At its end.
    pub(crate) memory: MemoryReading,
    pub(crate) succeeded: bool,
}

/// The surroundings of the work of an engine, or of a loop of the caller's own.
#[derive(Debug, Default)]
pub(crate) struct Surroundings(Rc<Told>);

#[derive(Debug, Default)]
struct Told {
    /// The memory that the work is measured against.
    memory: Option<DeviceMemory>,
    work: u64,
    walks_back: Cell<bool>,
    again: RefCell<Vec<Again>>,
}

impl Surroundings {
    pub(crate) fn new(memory: Option<&DeviceMemory>) -> Self {
        // 0 is that of whoever gives no number.
        static WORK: AtomicU64 = AtomicU64::new(1);
        Self(Rc::new(Told {
            memory: memory.cloned(),
            work: WORK.fetch_add(1, Relaxed),
            ..Told::default()
        }))
    }

    /// The graph is walked back from now on, and not again.
    pub(crate) fn walk_back(&self) {
        self.0.walks_back.set(true);
    }

    /// Runs work in these surroundings.
    pub(crate) fn around<T>(&self, work: impl FnOnce() -> T) -> T {
        scope::within(self.0.clone(), work)
    }

    /// The second runs since the last call.
    pub(crate) fn take_again(&self) -> Vec<Again> {
        self.0.again.take()
    }
}

impl scope::Surroundings for Told {
    fn in_use(&self) -> Option<u64> {
        self.memory.as_ref()?.in_use()
    }

    fn room(&self, device: &Device) -> Option<u64> {
        let is_here = |memory: &&DeviceMemory| memory.device().same_device(device);
        self.memory.as_ref().filter(is_here)?.room()
    }

    fn place(&self) -> u64 {
        layers::place()
    }

    fn work(&self) -> u64 {
        self.work
    }

    fn walks_back_last(&self) -> bool {
        self.walks_back.get()
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
