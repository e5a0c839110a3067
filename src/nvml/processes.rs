//! Which processes are at work on a GPU.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t};

use super::{Device, FUNCTION_NOT_FOUND, Field, INSUFFICIENT_SIZE};

/// NVML's mark for a size that it does not know.
const NOT_AVAILABLE: u64 = u64::MAX;
/// More processes than a GPU can have, whatever a broken library says.
const MOST: usize = 4096;
/// Room for so many at first, and for so many new ones where there are more.
const ROOM: usize = 64;
/// The longest element that any driver has written into a list, in bytes, whatever the header of its call says.
const LONGEST_ELEMENT: usize = 32;

type List = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t) -> u32;

const NO_PROCESS: nvmlProcessInfo_v2_t = nvmlProcessInfo_v2_t {
    pid: 0,
    usedGpuMemory: 0,
    gpuInstanceId: 0,
    computeInstanceId: 0,
};

/// A list that is filled again and again, without an allocation once it is long enough.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    room: Vec<nvmlProcessInfo_v2_t>,
    count: usize,
}

impl Processes {
    /// Numbers, and bytes where those are told.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Option<u64>)> {
        let listed = self.room.iter().take(self.count);
        listed.map(|process| {
            let bytes = process.usedGpuMemory;
            (process.pid, (bytes != NOT_AVAILABLE).then_some(bytes))
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

impl Device {
    /// Those that compute, by the newest call that the library has; the oldest has a shorter layout.
    pub(crate) fn list_processes(&self, to: &mut Processes) -> Field<()> {
        let functions = self.functions();
        let listed = self.list(
            to,
            &functions.nvmlDeviceGetComputeRunningProcesses_v3,
            &functions.nvmlDeviceGetComputeRunningProcesses_v2,
        );
        if listed != Err(FUNCTION_NOT_FOUND) {
            return listed;
        }
        let mut room = Vec::new();
        let empty = nvmlProcessInfo_v1_t {
            pid: 0,
            usedGpuMemory: 0,
        };
        let function = &functions.nvmlDeviceGetComputeRunningProcesses;
        // SAFETY: the handle is one of this session; `fill` gives a place for the count, and room for as many elements as it says.
        to.count = fill(function, &mut room, empty, |call, count, room| unsafe {
            call(self.handle, count, room)
        })?;
        to.room.clear();
        to.room
            .extend(room.iter().map(|process| nvmlProcessInfo_v2_t {
                pid: process.pid,
                usedGpuMemory: process.usedGpuMemory,
                ..NO_PROCESS
            }));
        Ok(())
    }

    /// How many draw. The oldest call, which has another layout, is left out: that displays take memory is worth no more.
    pub(crate) fn graphics(&self) -> Field<usize> {
        let mut processes = Processes::default();
        let functions = self.functions();
        self.list(
            &mut processes,
            &functions.nvmlDeviceGetGraphicsRunningProcesses_v3,
            &functions.nvmlDeviceGetGraphicsRunningProcesses_v2,
        )?;
        Ok(processes.len())
    }

    /// By the newest call, or by the one before it where that is missing or writes more than its header says.
    fn list(
        &self,
        to: &mut Processes,
        newest: &Result<List, libloading::Error>,
        newer: &Result<List, libloading::Error>,
    ) -> Field<()> {
        let Processes { room, count } = to;
        *count = 0;
        let mut ask = |function: &Result<List, libloading::Error>| {
            fill(function, room, NO_PROCESS, |call, count, room| {
                // SAFETY: the handle is one of this session; `fill` gives a place for the count, and room for as many elements as it
                // says, each as long as any driver writes them.
                unsafe { call(self.handle, count, room) }
            })
        };
        *count = match self.avoids_newest() {
            true => ask(newer),
            false => match ask(newest) {
                Err(FUNCTION_NOT_FOUND) => ask(newer),
                answer => answer,
            },
        }?;
        Ok(())
    }
}

/// Calls a function that fills a list, a second time with more room where there was too little.
fn fill<F: Copy, T: Copy>(
    function: &Result<F, libloading::Error>,
    room: &mut Vec<T>,
    empty: T,
    call: impl Fn(F, *mut c_uint, *mut T) -> u32,
) -> Field<usize> {
    let function = *function.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
    let mut wanted = ROOM;
    let mut is_second = false;
    loop {
        let needed = (wanted * LONGEST_ELEMENT).div_ceil(size_of::<T>());
        if room.len() < needed {
            room.resize(needed, empty);
        }
        let told = room.len() * size_of::<T>() / LONGEST_ELEMENT;
        let mut count = told as c_uint;
        match call(function, &mut count, room.as_mut_ptr()) {
            0 => return Ok((count as usize).min(told)),
            INSUFFICIENT_SIZE if !is_second => {
                wanted = (count as usize).min(MOST) + ROOM;
                is_second = true;
            }
            code => return Err(code),
        }
    }
}
