//! Shared by all tests: one lock, because the devices are process-wide, and short forms of calls.
//!
//! Every `unsafe` call in the tests is sound for the same reason: the pointers that it passes are to local variables.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod convolution;
pub mod counting;
pub mod kernels;
pub mod process;

use std::sync::{Mutex, MutexGuard, PoisonError};

use simulated_cuda::control::*;
use simulated_cuda::device::counters::Counters;
use simulated_cuda::driver::allocation::*;
use simulated_cuda::driver::context::*;
use simulated_cuda::driver::context_stack::*;
use simulated_cuda::driver::copying::*;
use simulated_cuda::driver::device_query::*;
use simulated_cuda::driver::pool::*;
use simulated_cuda::driver::stream::*;

pub const MIB: u64 = 1 << 20;
pub const OUT_OF_MEMORY: u32 = 2;
pub const INVALID_VALUE: u32 = 1;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Device 0 with a current context, for one test at a time.
pub struct Bench {
    pub context: u64,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    pub fn new() -> Bench {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(cuInit(0), 0);
        simulated_cuda_clear_fault(0);
        simulated_cuda_disarm(0);
        let context = out(|place| unsafe { cuDevicePrimaryCtxRetain(place, 0) });
        assert_eq!(cuCtxSetCurrent(context), 0);
        assert_eq!(simulated_cuda_set_capacity(0, 256 * MIB), 0);
        simulated_cuda_reset_counters(0);
        Bench {
            context,
            _alone: alone,
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        cuCtxSetCurrent(0);
        cuDevicePrimaryCtxRelease_v2(0);
    }
}

/// The result that a call writes to a pointer.
pub fn out<T: Default>(call: impl FnOnce(*mut T) -> u32) -> T {
    let mut value = T::default();
    assert_eq!(call(&mut value), 0);
    value
}

pub fn counters() -> Counters {
    let mut counters = Counters::default();
    assert_eq!(unsafe { simulated_cuda_counters(0, &mut counters) }, 0);
    counters
}

pub fn stream() -> u64 {
    out(|place| unsafe { cuStreamCreate(place, 1) })
}

pub fn pool(max_size: u64) -> u64 {
    out(|place| unsafe { cuMemPoolCreate(place, &Properties::of_device(0, max_size)) })
}

pub fn default_pool() -> u64 {
    out(|place| unsafe { cuDeviceGetDefaultMemPool(place, 0) })
}

/// Attribute 4 to 8 of a pool.
pub fn attribute(pool: u64, attribute: u32) -> u64 {
    out(|place| unsafe { cuMemPoolGetAttribute(pool, attribute, place) })
}

pub fn try_allocate(pool: u64, bytes: u64, stream: u64) -> Result<u64, u32> {
    let mut address = 0;
    match unsafe { cuMemAllocFromPoolAsync(&mut address, bytes as usize, pool, stream) } {
        0 => Ok(address),
        code => Err(code),
    }
}

pub fn allocate(pool: u64, bytes: u64, stream: u64) -> u64 {
    try_allocate(pool, bytes, stream).unwrap()
}

pub fn free(address: u64, stream: u64) {
    assert_eq!(cuMemFreeAsync(address, stream), 0);
}

/// Frees allocations at once.
pub fn give_back(addresses: &[u64]) {
    addresses
        .iter()
        .for_each(|&address| assert_eq!(cuMemFree_v2(address), 0));
}

/// Copies values to new device memory.
pub fn upload<T: Copy>(values: &[T]) -> u64 {
    let bytes = size_of_val(values);
    let address = out(|place| unsafe { cuMemAllocAsync(place, bytes.max(1), 0) });
    assert_eq!(
        unsafe { cuMemcpyHtoD_v2(address, values.as_ptr() as u64, bytes) },
        0
    );
    address
}

/// Copies values from the device.
pub fn download<T: Copy + Default>(address: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    assert_eq!(
        unsafe {
            cuMemcpyDtoH_v2(
                values.as_mut_ptr() as u64,
                address,
                size_of_val(&values[..]),
            )
        },
        0
    );
    values
}
