//! NVML's functions, loaded at run time. `nvml-wrapper-sys` has their signatures; a function that a library lacks is a return code
//! like any other. `nvml-wrapper`, the safe layer over it, is passed over: of clock event reasons it drops the bits that it does not
//! know, and of memory it asks by a call that old drivers lack.

use std::ffi::{c_char, c_uint};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;

use nvml_wrapper_sys::bindings::NvmlLib;

use super::{FUNCTION_NOT_FOUND, Field, text};
use crate::environment::probe::libraries::locate;
use crate::environment::source::Source;

pub(super) const INSUFFICIENT_SIZE: u32 = 7;
/// More processes than a GPU can have, whatever a broken library says.
const MOST_PROCESSES: usize = 4096;

/// Never unloaded, since other parts of the process may use it too.
pub(super) struct Nvml {
    pub(super) library: ManuallyDrop<NvmlLib>,
    /// Whether the newest calls for processes must not be made.
    pub(super) avoids_newest: bool,
}

/// Calls a function that writes one value.
pub(super) fn read<F: Copy, T>(
    function: &Result<F, libloading::Error>,
    mut place: T,
    call: impl FnOnce(F, &mut T) -> u32,
) -> Field<T> {
    let function = *function.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
    match call(function, &mut place) {
        0 => Ok(place),
        code => Err(code),
    }
}

impl Nvml {
    pub(super) fn load(source: &Source) -> Result<Self, String> {
        const NAMES: [&str; 2] = match cfg!(windows) {
            true => ["nvml.dll", "C:\\Windows\\System32\\nvml.dll"],
            false => ["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"],
        };
        let mut reason = format!("{}: not found", NAMES[0]);
        let paths = match source.is_this_machine() {
            true => NAMES.map(Into::into).to_vec(),
            false => locate(source, NAMES[0]).into_iter().collect(),
        };
        for (attempt, path) in paths.iter().enumerate() {
            // SAFETY: loading runs the library's initialisers; NVML is made to be loaded at any time. Its functions have the signatures
            // of the bindings, since NVML never changes those of a name.
            match unsafe { NvmlLib::new(path) } {
                Ok(library) => {
                    return Ok(Self {
                        library: ManuallyDrop::new(library),
                        avoids_newest: false,
                    });
                }
                Err(error) if attempt == 0 => reason = error.to_string(),
                Err(_) => {}
            }
        }
        Err(reason)
    }

    pub(super) fn init(&self) -> Field<()> {
        // SAFETY: it has no arguments, and may be called any number of times.
        read(&self.library.nvmlInit_v2, (), |call, ()| unsafe { call() })
    }

    pub(super) fn shutdown(&self) {
        // SAFETY: it has no arguments, and ends what one call of `init` began. There is nothing to do where it fails.
        let _ = read(&self.library.nvmlShutdown, (), |call, ()| unsafe { call() });
    }

    pub(super) fn driver_version(&self) -> Field<String> {
        let function = &self.library.nvmlSystemGetDriverVersion;
        // SAFETY: no more is written than the length that it is told.
        read(function, [0 as c_char; 96], |call, room| unsafe {
            call(room.as_mut_ptr(), room.len() as c_uint)
        })
        .map(|room| text(&room))
    }

    pub(super) fn cuda_version(&self) -> Field<i32> {
        let function = &self.library.nvmlSystemGetCudaDriverVersion_v2;
        // SAFETY: the place for the number outlives the call.
        read(function, 0, |call, place| unsafe { call(place) })
    }

    pub(super) fn count(&self) -> Field<u32> {
        // SAFETY: the place for the number outlives the call.
        read(
            &self.library.nvmlDeviceGetCount_v2,
            0,
            |call, place| unsafe { call(place) },
        )
    }
}

/// The longest element that any driver has written into a list, in bytes, whatever the header of its call says.
const LONGEST_ELEMENT: usize = 32;

/// Calls a function that fills a list: first for the number of elements, then for them, with some room for new ones.
pub(super) fn list<F: Copy, T: Copy>(
    function: &Result<F, libloading::Error>,
    empty: T,
    call: impl Fn(F, *mut c_uint, *mut T) -> u32,
) -> Field<Vec<T>> {
    let function = *function.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
    let mut count = 0;
    match call(function, &mut count, null_mut()) {
        0 => return Ok(Vec::new()),
        INSUFFICIENT_SIZE => {}
        code => return Err(code),
    }
    let announced = (count as usize).min(MOST_PROCESSES) + 16;
    let mut room = vec![empty; (announced * LONGEST_ELEMENT).div_ceil(size_of::<T>())];
    let mut count = announced as c_uint;
    match call(function, &mut count, room.as_mut_ptr()) {
        0 => {
            room.truncate((count as usize).min(announced));
            Ok(room)
        }
        code => Err(code),
    }
}
