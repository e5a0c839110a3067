//! Thin wrappers of the driver's calls on memory pools that cudarc has only as unsafe functions.

use std::ffi::c_void;
use std::mem::size_of;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::result::{self, DriverError, device, mem_pool};
pub(super) use candle_core::cuda_backend::cudarc::driver::sys::CUmemPool_attribute as Attribute;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream, sys};

/// The first driver with `maxSize` for pools, as `cuDriverGetVersion` numbers it.
pub(super) const FIRST_WITH_MAX_SIZE: i32 = 12020;

/// `CUmemPoolProps` in its layout since CUDA 12.2. cudarc's own depends on the toolkit of the build, not on the driver at run time.
#[repr(C)]
struct PoolProperties {
    allocation_type: u32,
    handle_types: u32,
    location_type: u32,
    location_id: i32,
    security_attributes: *mut c_void,
    max_size: usize,
    reserved: [u8; 56],
}

const _: () = assert!(size_of::<PoolProperties>() == 88);
const _: () = assert!(size_of::<sys::CUmemPoolProps>() == 88);

const ALLOCATION_TYPE_PINNED: u32 = 1;
const LOCATION_TYPE_DEVICE: u32 = 1;

/// A pool's handle. It may dangle: only the pool's owner may use it for more than a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(sys::CUmemoryPool);

// SAFETY: the driver's functions on pools may be called from any thread, and a handle is only a name.
unsafe impl Send for Handle {}
// SAFETY: as above; nothing behind the pointer is read here.
unsafe impl Sync for Handle {}

pub(super) fn version() -> Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: the pointer is to a live integer of the type that the driver writes.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(version)
}

/// Creates a pool on the context's device. `max_size` only for drivers that know it: older ones reserve these bytes.
pub(super) fn create_pool(
    context: &CudaContext,
    max_size: Option<usize>,
) -> Result<Handle, DriverError> {
    let properties = PoolProperties {
        allocation_type: ALLOCATION_TYPE_PINNED,
        handle_types: 0,
        location_type: LOCATION_TYPE_DEVICE,
        location_id: context.cu_device(),
        security_attributes: std::ptr::null_mut(),
        max_size: max_size.unwrap_or(0),
        reserved: [0; 56],
    };
    // SAFETY: `PoolProperties` is `CUmemPoolProps`, byte for byte, in every version that has pools, and outlives the call.
    let pool = unsafe { mem_pool::create((&raw const properties).cast()) }?;
    Ok(Handle(pool))
}

/// # Safety
/// The caller owns the pool, and nothing uses the handle afterwards.
pub(super) unsafe fn destroy_pool(pool: Handle) -> Result<(), DriverError> {
    // SAFETY: the caller owns the pool. The driver keeps it alive while allocations from it live.
    unsafe { mem_pool::destroy(pool.0) }
}

pub(super) fn current_pool(context: &CudaContext) -> Result<Handle, DriverError> {
    // SAFETY: the context's device was returned by the driver.
    Ok(Handle(unsafe {
        device::get_mem_pool(context.cu_device())
    }?))
}

/// # Safety
/// The pool exists, and belongs to the context's device.
pub(super) unsafe fn set_current_pool(
    context: &CudaContext,
    pool: Handle,
) -> Result<(), DriverError> {
    // SAFETY: the context's device was returned by the driver, and the pool is valid, as the caller guarantees.
    unsafe { device::set_mem_pool(context.cu_device(), pool.0) }
}

/// # Safety
/// The pool exists, and the driver writes the attribute as a `cuuint64_t`.
pub(super) unsafe fn attribute(pool: Handle, attribute: Attribute) -> Result<u64, DriverError> {
    let mut value = 0u64;
    // SAFETY: the pool is valid and the value has the attribute's type, as the caller guarantees.
    unsafe { mem_pool::get_attribute(pool.0, attribute, (&raw mut value).cast()) }?;
    Ok(value)
}

/// # Safety
/// The pool exists, and the driver reads the attribute as a `cuuint64_t`.
pub(super) unsafe fn set_attribute(
    pool: Handle,
    attribute: Attribute,
    mut value: u64,
) -> Result<(), DriverError> {
    // SAFETY: the pool is valid and the value has the attribute's type, as the caller guarantees.
    unsafe { mem_pool::set_attribute(pool.0, attribute, (&raw mut value).cast()) }
}

/// # Safety
/// The pool exists.
pub(super) unsafe fn trim_pool(pool: Handle, keep: usize) -> Result<(), DriverError> {
    // SAFETY: the pool exists, as the caller guarantees.
    unsafe { mem_pool::trim_to(pool.0, keep) }
}

/// Allocates bytes from a pool and frees them at once, in stream order.
///
/// # Safety
/// The pool exists, and belongs to the stream's device.
pub(super) unsafe fn take_and_free(
    pool: Handle,
    bytes: usize,
    stream: &Arc<CudaStream>,
) -> Result<(), DriverError> {
    stream.context().bind_to_thread()?;
    // SAFETY: pool and stream are valid, the latter because it is borrowed. The memory is never read.
    let address = unsafe { mem_pool::alloc_async(pool.0, bytes, stream.cu_stream()) }?;
    // SAFETY: the address was allocated above and is not used again.
    unsafe { result::free_async(address, stream.cu_stream()) }
}

/// Free and total bytes of the device. Unlike cudarc's own function it does not return an error that a drop has stored in the context.
pub(super) fn free_and_total(context: &CudaContext) -> Result<(u64, u64), DriverError> {
    // SAFETY: the context lives as long as it is borrowed.
    unsafe { result::ctx::set_current(context.cu_ctx()) }?;
    let (free, total) = result::mem_get_info()?;
    Ok((free as u64, total as u64))
}
