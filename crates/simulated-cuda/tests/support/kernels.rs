//! Kernels in PTX, and their launches.

use std::ffi::CStr;

use simulated_cuda::driver::launch::*;
use simulated_cuda::driver::module::*;

use super::out;

/// Loads a module, and returns one of its kernels.
pub fn kernel(text: &CStr, name: &CStr) -> u64 {
    let module = out(|place| unsafe { cuModuleLoadData(place, text.as_ptr()) });
    out(|place| unsafe { cuModuleGetFunction(place, module, name.as_ptr()) })
}

/// Launches a kernel of one dimension, whose arguments are all of 64 bits.
pub fn launch(function: u64, blocks: u32, threads: u32, arguments: &[u64]) -> u32 {
    let places: Vec<_> = arguments
        .iter()
        .map(|argument| (&raw const *argument).cast())
        .collect();
    let places = places.as_ptr();
    unsafe { cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, 0, places, 0) }
}
