use std::sync::Arc;

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::result::{memcpy_dtoh_async, stream};
use candle_core::cuda_backend::cudarc::driver::sys::{CUdeviceptr, CUstream};
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr};
use candle_core::{Device, Storage, Tensor};

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
