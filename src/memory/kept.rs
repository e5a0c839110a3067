//! Memory that glibc's allocator keeps for reuse when it is freed, as [`Growth::OnDemand`](super::Growth::OnDemand) does on a GPU.
//!
//! By default glibc returns freed blocks to the kernel, and each training step takes them again page by page. Its two thresholds are
//! raised to what `mallopt(3)` allows: blocks of up to 32 MiB are then reused, larger ones are still returned, and so are heaps of 64 MiB
//! beyond the first of a thread other than the main one. Other allocators decide for themselves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::SystemMemory;
use crate::files;

/// `DEFAULT_MMAP_THRESHOLD_MAX` on 64 bits; more is refused.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGEST: libc::c_int = 32 << 20;
/// No free block at the end of a heap is large enough to be returned.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const NEVER: libc::c_int = -1;

static KEEPS: AtomicBool = AtomicBool::new(false);

/// Keeps what is freed from now on, until the process ends.
pub(super) fn keep() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if !KEEPS.swap(true, Relaxed) {
        // SAFETY: `mallopt` takes the allocator's own lock and may be called at any time; it refuses values that it does not allow.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
            libc::mallopt(libc::M_TRIM_THRESHOLD, NEVER);
        }
    }
}

/// Returns what is kept to the system.
pub(super) fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if KEEPS.load(Relaxed) {
        // `malloc_trim` leaves the end of a thread's own heap alone. Freeing a block of 64 KiB or more returns it, by the threshold.
        // SAFETY: these take the allocator's own locks, change no block that is in use, and free the one that was just taken.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, 0);
            libc::free(std::hint::black_box(libc::malloc(128 << 10)));
            libc::mallopt(libc::M_TRIM_THRESHOLD, NEVER);
            libc::malloc_trim(0);
        }
    }
}

/// About how many bytes are kept beside the `in_use` that are live: the process's resident memory without files, less those.
pub(super) fn bytes(in_use: u64) -> u64 {
    if !KEEPS.load(Relaxed) {
        return 0;
    }
    let status = files::text(Path::new("/proc/self/status")).unwrap_or_default();
    let resident = SystemMemory::meminfo(&status, "RssAnon:");
    resident.unwrap_or(0).saturating_sub(in_use)
}
