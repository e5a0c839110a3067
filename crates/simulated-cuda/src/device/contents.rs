//! Whether a device computes. Without computing, a program runs as it would, allocation for allocation, and needs hardly any memory: blocks are
//! addresses without pages, so that those of a large device fit into a small machine.
//!
//! Then nothing that a kernel, a product or a generator would write is written. A block of at most [`KEPT`] bytes reads as zeros until copies and
//! memsets write into it, and then as what they wrote: so lengths and counts that the host wrote come back as they are. A larger block reads as
//! zeros. When large launches are executed in part, blocks are of any size, and a new one reads as zeros too: values of which most are never written
//! must not lead astray those that are. Memory that no block has is zeros throughout, because a block that was written is cleared when it is freed; so allocations, of which
//! there are many, touch no page.

use super::{Device, pages};
use crate::status::not_modelled;

/// The largest block whose contents are kept without computing.
const KEPT: u64 = 1 << 20;

/// Work above which a call of a library is left out when large launches are executed in part: operations.
const MOST_WORK: u64 = 1 << 28;

/// What devices do, by `SIMULATED_CUDA_MODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They compute.
    Execute,
    /// They compute nothing.
    Allocate,
    /// They compute, of large launches only some blocks, and large products not at all.
    Sample,
}

/// The mode; `execute` is the default.
pub fn mode() -> Mode {
    match std::env::var("SIMULATED_CUDA_MODE").as_deref() {
        Ok("execute") | Err(_) => Mode::Execute,
        Ok("allocate") => Mode::Allocate,
        Ok("sampled") => Mode::Sample,
        Ok(other) => not_modelled(&format!(
            "`SIMULATED_CUDA_MODE={other}` (`execute`, `allocate`, `sampled`)"
        )),
    }
}

impl Device {
    /// Whether a library's work of so many operations is done.
    pub fn does(&self, work: u64) -> bool {
        self.computes && (!self.samples || work <= MOST_WORK)
    }

    /// Whether what is written at this address is kept.
    pub fn keeps(&self, address: u64) -> bool {
        self.computes
            || self
                .memory
                .live_at(address)
                .is_none_or(|live| live.bytes <= KEPT)
    }

    /// Whether these bytes may be other than zeros, without computing: those of the host, and of blocks that were written.
    pub fn is_written(&self, address: u64) -> bool {
        self.memory
            .live_at(address)
            .is_none_or(|live| live.is_written)
    }

    /// Notes that a block is written.
    pub fn mark_written(&mut self, address: u64) {
        if !self.computes
            && let Some(live) = self.memory.live_at_mut(address)
        {
            live.is_written = true;
        }
    }

    /// Makes a block that is about to be freed read as zeros.
    pub fn clear(&self, address: u64) {
        let live = self.memory.live.get(&address);
        if self.samples
            && let Some(live) = live
        {
            // SAFETY: the block is live, so it lies in this device's mapping, and the program gives it up.
            unsafe { pages::zero(address, live.bytes as usize) };
        } else if let Some(live) = live.filter(|live| live.is_written) {
            // SAFETY: the block is live, and the program gives it up.
            unsafe { std::ptr::write_bytes(address as *mut u8, 0, live.bytes as usize) };
        }
    }
}
