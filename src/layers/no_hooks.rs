//! Without the feature nothing is measured.

use candle_core::Device;

use crate::batch::Task;
use crate::error::{Holding, Phase};

#[must_use]
pub(crate) struct Guard;

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {}
}

#[inline]
pub(crate) fn piece(
    _: &Device,
    _: u64,
    _: (Task, u64, usize),
    _: impl FnOnce() -> Vec<Holding>,
) -> Guard {
    Guard
}

#[inline]
pub(crate) fn phase(_: Phase) -> Guard {
    Guard
}

#[inline]
pub(crate) fn place() -> u64 {
    0
}

#[inline]
pub(crate) fn again(_: u64) -> Guard {
    Guard
}

#[inline]
pub(crate) fn last() -> Guard {
    Guard
}

#[inline]
pub(crate) fn largest(_: &Device) -> Vec<Holding> {
    Vec::new()
}
