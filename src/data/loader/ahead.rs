use candle_core::Device;

use crate::memory::DeviceMemory;

/// What is read ahead.
#[derive(Debug, Clone)]
pub(super) struct Ahead {
    /// `None` for as many as the number of workers asks for.
    pub(super) batches: Option<usize>,
    pub(super) bytes: u64,
    pub(super) memory: Option<DeviceMemory>,
    /// Where batches go.
    pub(super) device: Option<Device>,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            batches: None,
            bytes: 1 << 30,
            memory: None,
            device: None,
        }
    }
}

impl Ahead {
    /// Batches that may be begun before they are wanted.
    pub(super) fn batches(&self, workers: usize) -> u64 {
        self.batches.unwrap_or((2 * workers).max(4)) as u64
    }

    /// Whether so many bytes that are ready, and so many that are being made, are not too many.
    pub(super) fn has_room(&self, ready: u64, making: u64) -> bool {
        let fits = |memory: &DeviceMemory| {
            let now = memory.reading();
            let known = now.in_use.zip(now.limit);
            known.is_none_or(|(in_use, limit)| in_use.saturating_add(making) <= limit)
        };
        ready.saturating_add(making) <= self.bytes && self.memory.as_ref().is_none_or(fits)
    }
}
