//! Whether a device computes. Without computing, a program runs as it would, allocation for allocation, and needs hardly any memory: blocks are
//! addresses without pages, so that those of a large device fit into a small machine.
//!
//! Then nothing that a kernel, a product or a generator would write is written. A block of at most [`KEPT`] bytes holds zeros when it is
//! allocated, and after that what copies and memsets write into it: so lengths and counts that the host wrote come back as they are. A larger
//! block reads as zeros.

use super::Device;
use crate::status::not_modelled;

/// The largest block whose contents are kept without computing.
const KEPT: u64 = 1 << 20;
/// The size of a page of the host.
const PAGE: u64 = 4096;

/// Whether devices compute, by `SIMULATED_CUDA_MODE`: `execute`, which is the default, or `allocate`.
pub fn computes() -> bool {
    match std::env::var("SIMULATED_CUDA_MODE").as_deref() {
        Ok("execute") | Err(_) => true,
        Ok("allocate") => false,
        Ok(other) => not_modelled(&format!(
            "`SIMULATED_CUDA_MODE={other}` (`execute`, `allocate`)"
        )),
    }
}

impl Device {
    /// Whether what is written at this address is kept.
    pub fn keeps(&self, address: u64) -> bool {
        self.computes
            || self
                .memory
                .live_at(address)
                .is_none_or(|live| live.bytes <= KEPT)
    }

    /// Makes a new block read as zeros. Its pages may hold what was kept of blocks before it.
    pub fn clear(&self, address: u64, bytes: u64) {
        let end = address + bytes;
        let (first, last) = (address.next_multiple_of(PAGE).min(end), end / PAGE * PAGE);
        let zero = |from: u64, to: u64| {
            // SAFETY: the block was just placed in this device's mapping, and nobody has its address yet.
            unsafe { std::ptr::write_bytes(from as *mut u8, 0, (to - from) as usize) };
        };
        if bytes <= KEPT || first >= last {
            return zero(address, end);
        }
        // SAFETY: whole pages of the same block, in a private anonymous mapping, read as zeros after that.
        unsafe {
            libc::madvise(
                first as *mut libc::c_void,
                (last - first) as usize,
                libc::MADV_DONTNEED,
            )
        };
        zero(address, first);
        zero(last, end);
    }
}
