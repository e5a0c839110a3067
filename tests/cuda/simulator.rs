//! The controls of the simulated driver, found by symbol: the same program runs where there are none.

use std::ffi::c_char;

use libloading::os::unix::Library;

#[path = "../../crates/simulated-cuda/src/device/counters.rs"]
mod counters;
pub use counters::Counters;

/// One device of the simulator.
#[derive(Clone, Copy, Debug)]
pub struct Simulator {
    device: i32,
}

impl Simulator {
    /// `None` where the driver is a real one.
    pub fn of(device: usize) -> Option<Self> {
        // SAFETY: the symbol is only looked for.
        let found = unsafe {
            Library::this().get::<unsafe extern "C" fn() -> u32>(b"simulated_cuda_version\0")
        };
        found.ok().map(|_| Self {
            device: device as i32,
        })
    }

    pub fn counters(self) -> Counters {
        let mut counters = Counters::default();
        control!(simulated_cuda_counters(self.device => i32, &mut counters => *mut Counters) -> i32);
        counters
    }

    pub fn reset_counters(self) {
        control!(simulated_cuda_reset_counters(self.device => i32) -> i32);
    }

    /// Lets `times` allocations from the `nth` on fail, counted from 1.
    pub fn fail_allocation(self, nth: u64, times: u64) {
        control!(simulated_cuda_fail_allocation(self.device => i32, nth => u64, times => u64) -> i32);
    }

    /// The same for page-locked host memory.
    pub fn fail_host_allocation(self, nth: u64, times: u64) {
        control!(simulated_cuda_fail_host_allocation(
            self.device => i32, nth => u64, times => u64
        ) -> i32);
    }

    /// The same for the creation of events.
    pub fn fail_events(self, nth: u64, times: u64) {
        control!(simulated_cuda_fail_events(self.device => i32, nth => u64, times => u64) -> i32);
    }

    /// The same for the creation of pools.
    pub fn fail_pools(self, nth: u64, times: u64) {
        control!(simulated_cuda_fail_pools(self.device => i32, nth => u64, times => u64) -> i32);
    }

    /// The same for calls of libraries, which say so as `lack` does: 0 to 3 for a failed allocation, for what is not initialized, for an
    /// internal error and for a failed execution. They also say so from then on where the device has no memory for them.
    pub fn fail_library(self, nth: u64, times: u64, lack: u32) {
        control!(simulated_cuda_fail_library(
            self.device => i32, nth => u64, times => u64, lack => u32
        ) -> i32);
    }

    /// The same for copies, memsets and kernel launches, with this status.
    pub fn fail_work(self, nth: u64, times: u64, status: u32) {
        control!(simulated_cuda_fail_work(
            self.device => i32, nth => u64, times => u64, status => u32
        ) -> i32);
    }

    /// Loses the context at the `nth` launch from now on, counted from 1, with this status.
    pub fn fault_at_launch(self, nth: u64, status: i32, at_once: bool) {
        control!(simulated_cuda_fault_at_launch(
            self.device => i32, nth => u64, status => i32, at_once => bool
        ) -> i32);
    }

    /// Loses the context at the `nth` call of any kind from now on, counted from 1, with this status.
    pub fn fault_at_call(self, nth: u64, status: u32) {
        control!(simulated_cuda_fault_at_call(
            self.device => i32, nth => u64, status => u32
        ) -> i32);
    }

    /// Whether kernels, copies with page-locked memory and memsets run only when something waits for them.
    pub fn set_late(self, late: bool) {
        control!(simulated_cuda_set_late(self.device => i32, late => bool) -> i32);
    }

    /// The device cannot be opened, with this status, while this process holds no context of it; 0: it can.
    #[allow(dead_code, reason = "to try a GPU in exclusive mode by hand")]
    pub fn refuse_context(self, status: u32) {
        control!(simulated_cuda_refuse_context(self.device => i32, status => u32) -> i32);
    }

    pub fn clear_fault(self) {
        control!(simulated_cuda_clear_fault(self.device => i32) -> i32);
    }

    /// Sets what a pool reserves at a time.
    pub fn set_segment(self, bytes: u64) {
        control!(simulated_cuda_set_segment(self.device => i32, bytes => u64) -> i32);
    }

    /// Takes back every failure that has been ordered.
    pub fn disarm(self) {
        control!(simulated_cuda_disarm(self.device => i32) -> i32);
    }

    /// Another process holds this much of the device.
    pub fn neighbour(self, bytes: u64) {
        let status =
            control!(simulated_cuda_neighbour_set(self.device => i32, bytes => u64) -> i32);
        assert_eq!(status, 0, "the neighbour finds no room");
    }

    pub fn set_fragmentation(self, on: bool) {
        let status =
            control!(simulated_cuda_set_fragmentation(self.device => i32, on => bool) -> i32);
        assert_eq!(status, 0, "the device holds memory");
    }

    pub fn set_capacity(self, bytes: u64) {
        control!(simulated_cuda_set_capacity(self.device => i32, bytes => u64) -> i32);
    }

    pub fn set_pools_supported(self, supported: bool) {
        control!(simulated_cuda_set_pools_supported(self.device => i32, supported => bool) -> i32);
    }

    /// Whether a thread without a context cannot free memory, even on a stream of its own.
    pub fn set_frees_need_context(self, need: bool) {
        control!(simulated_cuda_set_frees_need_context(self.device => i32, need => bool) -> i32);
    }

    pub fn set_honours_max_size(self, honours: bool) {
        control!(simulated_cuda_set_honours_max_size(self.device => i32, honours => bool) -> i32);
    }

    /// Whether NVML lists the devices in the opposite order of CUDA's.
    pub fn set_nvml_reversed(reversed: bool) {
        control!(simulated_nvml_reverse(reversed => bool) -> i32);
    }

    /// The driver's version, for all devices: 12020 is 12.2.
    pub fn set_driver_version(version: i32) {
        control!(simulated_cuda_set_driver_version(version => i32) -> ());
    }

    /// Whether kernels whose PTX is newer than that fail to load.
    pub fn set_checks_ptx(checks: bool) {
        control!(simulated_cuda_set_checks_ptx(checks => bool) -> i32);
    }

    /// Begins to record what happens, or ends it.
    pub fn trace(self, on: bool) {
        control!(simulated_cuda_trace(self.device => i32, on => bool) -> i32);
    }

    pub fn trace_text(self) -> String {
        let text = |buffer: *mut c_char, capacity: usize| {
            control!(simulated_cuda_trace_text(
                self.device => i32, buffer => *mut c_char, capacity => usize
            ) -> usize)
        };
        let mut bytes = vec![0u8; text(std::ptr::null_mut(), 0)];
        text(bytes.as_mut_ptr().cast(), bytes.len());
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
