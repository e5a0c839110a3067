//! Copies from pinned memory: a program that does not wait where it must has a hazard, whenever the copy is executed.

mod support;

use simulated_cuda::control::*;
use simulated_cuda::driver::copying::*;
use simulated_cuda::driver::event::*;
use simulated_cuda::driver::host_memory::*;
use simulated_cuda::driver::memset::*;
use simulated_cuda::driver::stream::*;
use support::*;

const BYTES: u64 = 4096;

/// Pinned memory, device memory of one stream, and another stream for copies.
struct Parts {
    _bench: Bench,
    pinned: u64,
    block: u64,
    computing: u64,
    copying: u64,
    event: u64,
}

impl Parts {
    fn new() -> Parts {
        let bench = Bench::new();
        let computing = stream();
        Parts {
            _bench: bench,
            pinned: out(|place| unsafe { cuMemHostAlloc(place, BYTES as usize, 0) }),
            block: allocate(pool(0), BYTES, computing),
            computing,
            copying: stream(),
            event: out(|place| unsafe { cuEventCreate(place, 2) }),
        }
    }

    /// Orders later work on a stream after the present work of another.
    fn order(&self, later: u64, after: u64) {
        assert_eq!(cuEventRecord(self.event, after), 0);
        assert_eq!(cuStreamWaitEvent(later, self.event, 0), 0);
    }

    fn copy(&self) {
        let status =
            unsafe { cuMemcpyHtoDAsync_v2(self.block, self.pinned, BYTES as usize, self.copying) };
        assert_eq!(status, 0);
    }

    fn copy_back(&self) {
        let status =
            unsafe { cuMemcpyDtoHAsync_v2(self.pinned, self.block, BYTES as usize, self.copying) };
        assert_eq!(status, 0);
    }

    fn write(&self, value: u8) {
        // SAFETY: memory of the simulator, which is this process's.
        unsafe { std::ptr::write_bytes(self.pinned as *mut u8, value, BYTES as usize) };
    }
}

/// Does the same at once and late, and returns the hazards and the copies that were checked.
fn found(program: impl Fn(&Parts)) -> (u64, u64) {
    let [at_once, late] = [false, true].map(|late| {
        let parts = Parts::new();
        assert_eq!(simulated_cuda_set_late(0, late), 0);
        simulated_cuda_reset_counters(0);
        program(&parts);
        assert_eq!(simulated_cuda_set_late(0, false), 0);
        let counted = counters();
        for stream in [parts.computing, parts.copying] {
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert_eq!(cuStreamDestroy_v2(stream), 0);
        }
        // Those that a program has freed already are refused.
        cuMemFreeHost(parts.pinned);
        simulated_cuda::driver::allocation::cuMemFree_v2(parts.block);
        assert_eq!(cuEventDestroy_v2(parts.event), 0);
        (counted.hazards, counted.copies_checked)
    });
    assert_eq!(at_once, late);
    late
}

#[test]
fn a_program_that_waits_has_none() {
    let correct = found(|parts| {
        for value in 0..3 {
            parts.write(value);
            parts.order(parts.copying, parts.computing);
            parts.copy();
            parts.order(parts.computing, parts.copying);
            assert_eq!(cuMemsetD8Async(parts.block, 1, 8, parts.computing), 0);
            assert_eq!(cuEventSynchronize(parts.event), 0);
        }
        parts.copy();
        parts.order(parts.computing, parts.copying);
        free(parts.block, parts.computing);
        assert_eq!(cuStreamSynchronize(parts.copying), 0);
        assert_eq!(cuMemFreeHost(parts.pinned), 0);
    });
    assert_eq!(correct, (0, 4));
}

#[test]
fn pinned_memory_that_is_written_or_freed_before_the_copy_is_done() {
    let ordered = |parts: &Parts| parts.order(parts.copying, parts.computing);
    let reused = found(|parts| {
        ordered(parts);
        parts.copy();
        parts.write(9);
        assert_eq!(cuStreamSynchronize(parts.copying), 0);
    });
    assert_eq!(reused, (1, 1));
    let waited_for_another = found(|parts| {
        ordered(parts);
        parts.copy();
        assert_eq!(cuStreamSynchronize(parts.computing), 0);
        parts.write(9);
        assert_eq!(cuStreamSynchronize(parts.copying), 0);
    });
    assert_eq!(waited_for_another, (1, 1));
    let freed = found(|parts| {
        ordered(parts);
        parts.copy();
        assert_eq!(cuStreamSynchronize(parts.computing), 0);
        assert_eq!(cuMemFreeHost(parts.pinned), 0);
    });
    assert_eq!(freed, (1, 0));
}

#[test]
fn device_memory_that_is_used_on_a_stream_that_has_not_waited() {
    let unordered = found(Parts::copy);
    assert_eq!(unordered, (1, 0), "it may not be allocated yet");
    let used = found(|parts| {
        parts.order(parts.copying, parts.computing);
        parts.copy();
        assert_eq!(cuMemsetD8Async(parts.block, 1, 8, parts.computing), 0);
    });
    assert_eq!(used, (1, 0));
    let freed = found(|parts| {
        parts.order(parts.copying, parts.computing);
        parts.copy();
        free(parts.block, parts.computing);
    });
    assert_eq!(freed, (1, 0));
}

/// There and back by one stream for copies, without a wait of the host.
#[test]
fn pinned_memory_that_only_one_stream_uses() {
    let correct = found(|parts| {
        for _ in 0..3 {
            parts.order(parts.copying, parts.computing);
            parts.copy_back();
            parts.order(parts.computing, parts.copying);
            assert_eq!(cuMemsetD8Async(parts.block, 1, 8, parts.computing), 0);
            parts.order(parts.copying, parts.computing);
            parts.copy();
            parts.order(parts.computing, parts.copying);
        }
        assert_eq!(cuStreamSynchronize(parts.copying), 0);
    });
    // Only the driver knows what was copied.
    assert_eq!(correct, (0, 0));
}

#[test]
fn device_memory_that_changes_while_it_is_copied_to_the_host() {
    let written = found(|parts| {
        parts.order(parts.copying, parts.computing);
        parts.copy_back();
        assert_eq!(cuMemsetD8Async(parts.block, 1, 8, parts.computing), 0);
    });
    assert_eq!(written, (1, 0));
    let freed = found(|parts| {
        parts.order(parts.copying, parts.computing);
        parts.copy_back();
        free(parts.block, parts.computing);
    });
    assert_eq!(freed, (1, 0));
}

#[test]
fn pinned_memory_that_is_read_before_it_is_written() {
    let read = found(|parts| {
        parts.order(parts.copying, parts.computing);
        parts.copy_back();
        let status = unsafe {
            cuMemcpyHtoDAsync_v2(parts.block, parts.pinned, BYTES as usize, parts.computing)
        };
        assert_eq!(status, 0);
    });
    // The pinned memory, and the device memory that is still copied.
    assert_eq!(read, (2, 0));
}
