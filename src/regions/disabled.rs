//! Without the feature there are no regions.

use std::time::{Duration, Instant};

use candle_core::Tensor;
use candle_core::backprop::GradStore;

use crate::error::MemoryReading;
use crate::memory::DeviceMemory;

#[derive(Debug, Clone, Default)]
pub(crate) struct Watched {
    pub(crate) count: usize,
    pub(crate) held: Option<Held>,
    pub(crate) logits: u64,
}

#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "nothing is held")]
pub(crate) struct Held {
    pub(crate) all: u64,
    pub(crate) largest: u64,
}

#[derive(Debug)]
#[allow(dead_code, reason = "nothing runs again")]
pub(crate) struct Again {
    pub(crate) began: Instant,
    pub(crate) elapsed: Duration,
    pub(crate) memory: MemoryReading,
    pub(crate) succeeded: bool,
}

/// Without the feature no layer asks.
#[derive(Debug, Default)]
pub(crate) struct Surroundings(());

impl Surroundings {
    #[inline]
    pub(crate) fn new(_: Option<&DeviceMemory>) -> Self {
        Self(())
    }

    #[inline]
    pub(crate) fn walk_back(&self) {}

    #[inline]
    pub(crate) fn around<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }

    #[inline]
    pub(crate) fn take_again(&self) -> Vec<Again> {
        Vec::new()
    }
}

#[inline]
pub(crate) fn seeded<T>(_: u64, work: impl FnOnce() -> T) -> T {
    work()
}

#[inline]
pub(crate) fn frozen<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[inline]
pub(crate) fn watch<T>(_: bool, work: impl FnOnce() -> T) -> (T, Watched) {
    (work(), Watched::default())
}

#[inline]
pub(crate) fn backward(loss: &Tensor) -> candle_core::Result<GradStore> {
    loss.backward()
}
