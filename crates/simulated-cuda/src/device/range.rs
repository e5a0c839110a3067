//! A device's virtual addresses: host addresses, reserved once. Their pages take memory only when they are touched.

use std::collections::BTreeMap;

use crate::report;

/// Bytes of address space that a device reserves, or twice its memory if that is more.
const RESERVED: u64 = 256 << 30;

/// Granularity of placement in bytes, the size of a device page.
pub const PAGE: u64 = 2 << 20;

/// The reserved addresses and the pieces placed in them.
#[derive(Debug)]
pub struct Range {
    base: u64,
    reserved: u64,
    /// Bytes from `base` in which pieces may be placed.
    window: u64,
    /// Start and length of each piece.
    placed: BTreeMap<u64, u64>,
}

impl Range {
    /// Reserves addresses for so many bytes of memory; fewer than [`RESERVED`] if the machine does not grant them.
    pub fn reserve(memory: u64) -> Range {
        let mut reserved = RESERVED.max(memory.saturating_mul(2));
        loop {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing that exists.
            let start = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    (reserved + PAGE) as usize,
                    access,
                    flags,
                    -1,
                    0,
                )
            };
            if start != libc::MAP_FAILED {
                let base = (start as u64).next_multiple_of(PAGE);
                return Range {
                    base,
                    reserved,
                    window: reserved,
                    placed: BTreeMap::new(),
                };
            }
            reserved = (reserved / 2).next_multiple_of(PAGE);
            if reserved < memory.max(2 * PAGE) {
                report::problem(
                    "addresses",
                    &format!(
                        "a device of {memory} bytes needs as many addresses, and the machine does not grant them (`ulimit -v`)"
                    ),
                );
                eprintln!("simulated CUDA: no address space for a device of {memory} bytes");
                std::process::abort();
            }
        }
    }

    /// Has single pages exist, and not 2 MiB at a touch.
    pub fn without_huge_pages(&self) {
        let start = self.base as *mut libc::c_void;
        // SAFETY: the mapping is this device's own. A host without huge pages declines, which is as well.
        _ = unsafe { libc::madvise(start, self.reserved as usize, libc::MADV_NOHUGEPAGE) };
    }

    /// Limits placement to this many bytes, or to all reserved ones.
    pub fn set_window(&mut self, bytes: Option<u64>) {
        self.window = bytes.unwrap_or(self.reserved).min(self.reserved);
    }

    /// All addresses of this device, in use or not.
    pub fn addresses(&self) -> std::ops::Range<u64> {
        self.base..self.base + self.reserved
    }

    /// Finds the first gap for a piece.
    pub fn place(&mut self, bytes: u64) -> Option<u64> {
        let mut gap = self.base;
        for (&start, &length) in &self.placed {
            if start - gap >= bytes {
                break;
            }
            gap = (start + length).next_multiple_of(PAGE);
        }
        if gap.checked_add(bytes)? > self.base + self.window {
            return None;
        }
        self.placed.insert(gap, bytes);
        Some(gap)
    }

    /// Removes a part of a piece.
    pub fn cut(&mut self, start: u64, bytes: u64) {
        let Some((&piece, &length)) = self.placed.range(..=start).next_back() else {
            return;
        };
        self.placed.remove(&piece);
        let (end, last) = (start + bytes, piece + length);
        for (from, to) in [(piece, start), (start, end), (end, last)] {
            if from < to {
                self.placed.insert(from, to - from);
            }
        }
        self.remove(start);
    }

    /// Removes a piece and returns its pages to the machine.
    pub fn remove(&mut self, start: u64) {
        if let Some(bytes) = self.placed.remove(&start) {
            // SAFETY: the piece lies in this device's own mapping, and nothing refers to it any more.
            unsafe {
                libc::madvise(
                    start as *mut libc::c_void,
                    bytes as usize,
                    libc::MADV_DONTNEED,
                )
            };
        }
    }
}
