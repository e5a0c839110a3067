//! Waits for a GPU's work, or reads what it has computed up to a point without waiting; makes the GPU ready for another attempt after memory
//! ran out, and takes page-locked host memory for it.

use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::result::{
    free_host, malloc_host, memcpy_dtoh_async, stream,
};
use candle_core::cuda_backend::cudarc::driver::sys::{
    self, CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr, CUresult, CUstream,
};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, DriverError,
};
use candle_core::cuda_backend::{CudaError, CudaStorageSlice, WrapErr};
use candle_core::{Device, Storage, Tensor};

use super::pool::{Handle, free_and_total, trim_current};
use crate::error::{Error, Resource, Result};
use crate::memory::library_reserve;

/// The class of an error of the driver.
pub(super) fn classified(error: DriverError) -> Error {
    candle_core::Error::from(CudaError::from(error)).into()
}

/// Waits for the device's work, and returns an asynchronous fault with its type, which candle's `synchronize` turns into text.
///
/// cudarc first returns errors that drops on any thread have stored. They are taken out before, so that an old error is not mistaken
/// for the answer.
pub(crate) fn synchronize(device: &Device) -> Result<()> {
    let Device::Cuda(cuda) = device else {
        return Ok(device.synchronize()?);
    };
    let stream = cuda.cuda_stream();
    drain(stream.context())?;
    if let Err(error) = stream.synchronize() {
        // Another thread may have stored an error in between, and then nothing has waited yet.
        note_stored(error)?;
        stream.synchronize().w()?;
    }
    Ok(())
}

/// Whether a GPU has less free than its [`library_reserve`].
pub(crate) fn is_full(device: &Device) -> bool {
    matches!(device, Device::Cuda(cuda) if has_no_reserve(cuda.cuda_stream().context()))
}

pub(super) fn has_no_reserve(context: &CudaContext) -> bool {
    free_and_total(context).is_ok_and(|(free, total)| free < library_reserve(total))
}

/// Returns the current pool's unused memory to the device.
pub(crate) fn trim(device: &Device) -> Result<()> {
    if let Device::Cuda(cuda) = device {
        let stream = cuda.cuda_stream();
        if stream.context().has_async_alloc() {
            trim_current(stream.context()).w()?;
        }
    }
    Ok(())
}

/// Takes out an error that an earlier drop has stored.
pub(crate) fn drain(context: &CudaContext) -> Result<()> {
    context.check_err().or_else(note_stored)
}

/// An error that a drop has stored says nothing about later work, unless the device is lost.
fn note_stored(error: DriverError) -> Result<()> {
    let leaked = error.0 == sys::CUresult::CUDA_ERROR_INVALID_CONTEXT;
    match classified(error) {
        fault @ Error::DeviceFault(_) => return Err(fault),
        error if leaked => tracing::warn!(
            %error,
            "a tensor was dropped on a thread without the device's context, and its memory is lost: call \
             `context().bind_to_thread()` on the stream of candle's device there"
        ),
        error => tracing::warn!(%error, "an error from freeing device memory earlier"),
    }
    Ok(())
}

/// Page-locked host memory, mapped for the device. It is freed on drop at once: whoever owns it waits before for work that uses it.
#[derive(Debug)]
pub(crate) struct PageLocked {
    start: Handle<u8>,
    bytes: usize,
    context: Arc<CudaContext>,
}

impl PageLocked {
    /// Zeroed memory; `bytes` is not 0.
    pub(crate) fn zeros(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        context.bind_to_thread().w()?;
        // Not write-combined, which the host would read very slowly.
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current. The memory is not read before it is written, below.
        let start = unsafe { malloc_host(bytes, flags) };
        let start = start.and_then(|start| match start.is_null() {
            true => Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)),
            false => Ok(Handle(start.cast::<u8>())),
        });
        let start = start.map_err(|error| refused(error, bytes))?;
        // SAFETY: the driver has allocated that many bytes, and nobody else has their address yet.
        unsafe { start.0.write_bytes(0, bytes) };
        Ok(Self {
            start,
            bytes,
            context: Arc::clone(context),
        })
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Its first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.0
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Its bytes.
    ///
    /// # Safety
    /// Until the result is dropped, nobody writes to them, the device included.
    pub(crate) unsafe fn read(&self) -> &[u8] {
        // SAFETY: all bytes are initialized and belong to `self`; the caller keeps writers out.
        unsafe { std::slice::from_raw_parts(self.start.0, self.bytes) }
    }

    /// Its bytes.
    ///
    /// # Safety
    /// No unfinished work on the device uses them.
    pub(crate) unsafe fn write(&mut self) -> &mut [u8] {
        // SAFETY: all bytes are initialized and belong to `self`, which is borrowed mutably; the caller keeps the device out.
        unsafe { std::slice::from_raw_parts_mut(self.start.0, self.bytes) }
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        while_dropping(&self.context, || {
            // SAFETY: the driver has allocated the memory, which any thread may free, and its owner has waited for work that uses it.
            unsafe { free_host(self.start.0.cast()) }
        });
    }
}

/// Does a part of a drop with the context bound to this thread. An error is stored in the context, as cudarc's own drops do.
pub(crate) fn while_dropping(
    context: &CudaContext,
    work: impl FnOnce() -> Result<(), DriverError>,
) {
    // An error that an earlier drop has left keeps the context from being bound the first time. It is kept for the next caller.
    let earlier = context.bind_to_thread();
    if earlier.is_err() {
        context.record_err(context.bind_to_thread());
    }
    context.record_err(work());
    context.record_err(earlier);
}

/// The driver's one code for exhausted memory does not say which.
fn refused(error: DriverError, bytes: usize) -> Error {
    match classified(error) {
        Error::ResourceExhausted(mut exhausted) => {
            exhausted.resource = Resource::PinnedMemory;
            exhausted.bytes.requested = Some(bytes as u64);
            Error::ResourceExhausted(exhausted)
        }
        error => error,
    }
}

/// A point in a GPU's queue of work.
#[derive(Debug)]
pub(crate) struct Mark {
    event: CudaEvent,
    queue: Arc<CudaStream>,
}

impl Mark {
    /// Marks the end of what is queued now; `None` on another device, or if the driver refuses.
    pub(crate) fn new(device: &Device) -> Option<Self> {
        let Device::Cuda(cuda) = device else {
            return None;
        };
        let queue = cuda.cuda_stream();
        let event = queue.record_event(None).ok()?;
        Some(Self { event, queue })
    }

    /// Whether the work before the mark is done. Waits for nothing.
    pub(crate) fn has_passed(&self) -> bool {
        self.event.is_complete()
    }

    /// Reads the first elements of tensors that were computed before the mark, which has passed, without waiting for work after it.
    pub(crate) fn read<'t>(&self, values: impl Iterator<Item = &'t Tensor>) -> Option<Vec<f64>> {
        // A thread that only prints reports may never have used the device.
        self.queue.context().bind_to_thread().ok()?;
        // Not one of cudarc's, which would have every later use of every tensor recorded in events.
        let side = stream::create(stream::StreamKind::NonBlocking).ok()?;
        let read: Option<Vec<_>> = values.map(|value| read(value, side)).collect();
        // SAFETY: nobody else has the stream, and nothing is queued on it.
        let destroyed = unsafe { stream::destroy(side) };
        destroyed.ok().and(read)
    }
}

fn read(value: &Tensor, side: CUstream) -> Option<f64> {
    let (storage, layout) = value.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        return None;
    };
    let at = layout.start_offset();
    match &storage.slice {
        CudaStorageSlice::F64(all) => copied(address(all, at)?, 0f64, side),
        CudaStorageSlice::F32(all) => copied(address(all, at)?, 0f32, side).map(f64::from),
        CudaStorageSlice::F16(all) => {
            copied(address(all, at)?, half::f16::ZERO, side).map(f64::from)
        }
        CudaStorageSlice::BF16(all) => {
            copied(address(all, at)?, half::bf16::ZERO, side).map(f64::from)
        }
        _ => None,
    }
}

/// The address of an element.
fn address<T>(all: &CudaSlice<T>, at: usize) -> Option<CUdeviceptr> {
    let (start, _) = all.device_ptr(all.stream());
    (at < all.len()).then(|| start + (at * size_of::<T>()) as CUdeviceptr)
}

/// Copies an element into `place`.
fn copied<T: Copy>(from: CUdeviceptr, place: T, side: CUstream) -> Option<T> {
    let mut places = [place];
    // SAFETY: the address is that of a live element of this type, which nothing writes to any more. A copy to memory that is not page-locked
    // returns when it is done.
    let done = unsafe { memcpy_dtoh_async(&mut places, from, side) };
    let [value] = places;
    done.ok().map(|()| value)
}
