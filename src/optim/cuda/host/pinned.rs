use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::{free_host, malloc_host, stream};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, cuMemHostGetDevicePointer_v2,
};
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DriverError};

use crate::error::{Error, Remedy, Resource, Result};
use crate::optim::fused::misplaced;

/// Of the first byte of each tensor: what kernels load at once, and a line of the GPU's cache.
pub const ALIGNMENT: usize = 128;

/// Page-locked host memory that kernels on one stream read and write in place.
#[derive(Debug)]
pub struct Pinned {
    start: NonNull<u8>,
    bytes: usize,
    address: u64,
    stream: Arc<CudaStream>,
}

// SAFETY: it owns its memory, as a `Box<[u8]>` does. The driver's calls on it may come from any thread.
unsafe impl Send for Pinned {}
// SAFETY: a shared reference only reads, after it has waited for the stream; see `read`.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeroed memory; `bytes` is not 0.
    pub fn zeros(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self> {
        stream.context().bind_to_thread().w()?;
        // Not write-combined, which the host would read very slowly.
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current. The memory is not read before it is written, below.
        let start = unsafe { malloc_host(bytes, flags) };
        let start = start.map_err(|error| refused(error, bytes))?;
        let mut pinned = Self {
            start: NonNull::new(start.cast()).ok_or_else(misplaced)?,
            bytes,
            address: 0,
            stream: stream.clone(),
        };
        // SAFETY: the driver has allocated that many bytes, and nobody else has their address yet.
        unsafe { pinned.start.as_ptr().write_bytes(0, bytes) };
        // SAFETY: a place for one address, and memory that is mapped for the device.
        let status =
            unsafe { cuMemHostGetDevicePointer_v2(&mut pinned.address, pinned.pointer(), 0) };
        status.result().w()?;
        Ok(pinned)
    }

    /// Where kernels find it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes.
    ///
    /// # Safety
    /// No unfinished work on the device uses them.
    pub unsafe fn write(&mut self) -> &mut [u8] {
        // SAFETY: all bytes are initialized and belong to `self`, which is borrowed mutably; the caller keeps the device out.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Its bytes, after all work on the stream is finished.
    ///
    /// # Safety
    /// No work that writes to it is launched before the result is dropped.
    pub unsafe fn read(&self) -> Result<&[u8]> {
        self.stream.synchronize().w()?;
        // SAFETY: all bytes are initialized and belong to `self`; only work on the stream writes to them, it is finished, and the
        // caller launches no more.
        Ok(unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) })
    }

    fn pointer(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

impl Drop for Pinned {
    /// Waits for the stream, so that no kernel finds the memory gone.
    fn drop(&mut self) {
        let context = self.stream.context();
        // An error that an earlier drop has left keeps the context from being bound the first time. It is kept for the next caller.
        let earlier = context.bind_to_thread();
        if earlier.is_err() {
            context.record_err(context.bind_to_thread());
        }
        // SAFETY: the stream lives as long as `self`.
        let finished = unsafe { stream::synchronize(self.stream.cu_stream()) };
        // SAFETY: the driver has allocated the memory, and work that uses it is finished, or lost with the device.
        let freed = unsafe { free_host(self.pointer()) };
        context.record_err(finished.and(freed));
        context.record_err(earlier);
    }
}

/// The driver's one code for exhausted memory does not say which.
fn refused(error: DriverError, bytes: usize) -> Error {
    let error = Err::<(), _>(error).w();
    match error.err().map(Error::from) {
        Some(Error::ResourceExhausted(mut exhausted)) => {
            exhausted.resource = Resource::PinnedMemory;
            exhausted.bytes.requested = Some(bytes as u64);
            let advice = "a smaller fraction in `moments_on_host`, `HostUpdate::Device`, or more free memory on the host";
            exhausted.remedies.push(Remedy::new(advice, None));
            Error::ResourceExhausted(exhausted)
        }
        Some(error) => error,
        None => misplaced().into(),
    }
}
