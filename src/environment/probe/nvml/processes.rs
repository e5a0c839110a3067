//! Which processes are at work on a GPU.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t};

use super::library::{Nvml, list};
use super::{FUNCTION_NOT_FOUND, Field};

/// NVML's mark for a size that it does not know.
const NOT_AVAILABLE: u64 = u64::MAX;
type ListProcesses =
    unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t) -> u32;

const NO_PROCESS: nvmlProcessInfo_v2_t = nvmlProcessInfo_v2_t {
    pid: 0,
    usedGpuMemory: 0,
    gpuInstanceId: 0,
    computeInstanceId: 0,
};

impl Nvml {
    /// By the newest call that the library has; the oldest has a shorter layout.
    pub(super) fn processes(&self, device: nvmlDevice_t) -> Field<Vec<(u32, Option<u64>)>> {
        let used = |bytes: u64| (bytes != NOT_AVAILABLE).then_some(bytes);
        let listed = self.listed(
            device,
            &self.library.nvmlDeviceGetComputeRunningProcesses_v3,
            &self.library.nvmlDeviceGetComputeRunningProcesses_v2,
        );
        if listed.as_ref().err() != Some(&FUNCTION_NOT_FOUND) {
            let told = |process: nvmlProcessInfo_v2_t| (process.pid, used(process.usedGpuMemory));
            return listed.map(|list| list.into_iter().map(told).collect());
        }
        let empty = nvmlProcessInfo_v1_t {
            pid: 0,
            usedGpuMemory: 0,
        };
        // SAFETY: `list` gives a place for the count, and room for as many elements as it says, of this call's layout.
        let listed = list(
            &self.library.nvmlDeviceGetComputeRunningProcesses,
            empty,
            |call, count, room| unsafe { call(device, count, room) },
        );
        let told = |process: nvmlProcessInfo_v1_t| (process.pid, used(process.usedGpuMemory));
        listed.map(|list| list.into_iter().map(told).collect())
    }

    /// The oldest call, which has another layout, is left out: that displays take memory is worth no more.
    pub(super) fn graphics(&self, device: nvmlDevice_t) -> Field<usize> {
        let listed = self.listed(
            device,
            &self.library.nvmlDeviceGetGraphicsRunningProcesses_v3,
            &self.library.nvmlDeviceGetGraphicsRunningProcesses_v2,
        );
        listed.map(|processes| processes.len())
    }

    /// By the newest call, or by the one before it where that is missing or writes more than its header says.
    fn listed(
        &self,
        device: nvmlDevice_t,
        newest: &Result<ListProcesses, libloading::Error>,
        newer: &Result<ListProcesses, libloading::Error>,
    ) -> Field<Vec<nvmlProcessInfo_v2_t>> {
        let ask = |function: &Result<ListProcesses, libloading::Error>| {
            list(function, NO_PROCESS, |call, count, room| {
                // SAFETY: `list` gives a place for the count, and room for as many elements as it says, each as long as any driver writes
                // them; the device is a handle of this library.
                unsafe { call(device, count, room) }
            })
        };
        match self.avoids_newest {
            true => ask(newer),
            false => ask(newest).or_else(|code| match code {
                FUNCTION_NOT_FOUND => ask(newer),
                code => Err(code),
            }),
        }
    }
}
