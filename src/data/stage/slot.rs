//! Page-locked memory for batches on their way to a GPU: a slot for each, used again when its copies are over, and as large as the largest batch so
//! far.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_core::cuda_backend::cudarc::driver::sys::CUdeviceptr;
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, DevicePtrMut, DeviceRepr, result,
};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{CudaDevice, DType, Error, Result as CandleResult, Shape, Tensor};
use parking_lot::Mutex;

use crate::elements::{bytes, of_elements};
use crate::error::Result;
use crate::memory::{PageLocked, drain, while_dropping};

/// Page-locked memory for one batch.
#[derive(Debug)]
pub struct Slot {
    /// Behind the last copies from the memory.
    pub event: CudaEvent,
    pub memory: PageLocked,
}

impl Slot {
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        context.bind_to_thread().w()?;
        Ok(Self {
            event: context.new_event(None).w()?,
            memory: PageLocked::zeros(context, bytes)?,
        })
    }
}

impl Drop for Slot {
    /// Waits for the copies, so that none finds the memory gone.
    fn drop(&mut self) {
        while_dropping(self.memory.context(), || {
            // SAFETY: it is alive.
            unsafe { result::event::synchronize(self.event.cu_event()) }
        });
    }
}

/// The slots that no batch is in, the one that is longest free first. There is at most one slot more than there were batches at once.
#[derive(Debug, Default)]
pub struct Ring {
    free: Mutex<VecDeque<Slot>>,
    /// Bytes of the largest batch so far.
    largest: AtomicUsize,
}

impl Ring {
    /// A slot of at least so many bytes, from which no copy is unfinished.
    pub fn take(&self, context: &Arc<CudaContext>, bytes: usize) -> Result<Slot> {
        let largest = self.largest.fetch_max(bytes, Relaxed).max(bytes);
        drain(context)?;
        if let Some(slot) = self.longest_free() {
            slot.event.synchronize().w()?;
            if slot.memory.len() >= bytes {
                return Ok(slot);
            }
        }
        Slot::new(context, largest)
    }

    /// The last slot that was given back stays: a loader without workers would wait on the training thread for its copies.
    fn longest_free(&self) -> Option<Slot> {
        let mut free = self.free.lock();
        match free.len() {
            0 | 1 => None,
            _ => free.pop_front(),
        }
    }

    /// Takes a slot back. Copies from it may be unfinished.
    pub fn give_back(&self, slot: Slot) {
        self.free.lock().push_back(slot);
    }
}

/// Of the first byte of each tensor in a slot.
const ALIGNMENT: usize = 256;

/// A tensor in a slot.
#[derive(Debug)]
pub struct SlotTensor {
    pub start: usize,
    pub end: usize,
    pub dtype: DType,
    pub shape: Shape,
}

/// Where each tensor goes in a slot; `None` for one that is not on the host, or of a type that candle only stores.
pub fn places(tensors: &[&mut Tensor]) -> Vec<Option<SlotTensor>> {
    let mut end = 0;
    let place = |tensor: &&mut Tensor| {
        let dtype = tensor.dtype();
        macro_rules! is_known {
            ($($known:ident)+) => {
                matches!(dtype, $(DType::$known)|+)
            };
        }
        if !of_elements!(is_known) || !tensor.device().is_cpu() {
            return None;
        }
        let start = usize::next_multiple_of(end, ALIGNMENT);
        end = start + tensor.elem_count() * dtype.size_in_bytes();
        Some(SlotTensor {
            start,
            end,
            dtype,
            shape: tensor.shape().clone(),
        })
    };
    tensors.iter().map(place).collect()
}

/// Copies tensors into a slot that nothing else uses.
pub fn fill(
    slot: &mut Slot,
    tensors: &[&mut Tensor],
    places: &[Option<SlotTensor>],
) -> CandleResult<()> {
    // SAFETY: the ring has waited for the copies from this slot, and it is in nobody else's hands.
    let memory = unsafe { slot.memory.write() };
    for (tensor, place) in tensors.iter().zip(places) {
        let Some(place) = place else { continue };
        let tensor = tensor.contiguous()?;
        let (storage, layout) = tensor.storage_and_layout();
        let from = bytes(&storage, layout);
        let to = memory.get_mut(place.start..place.end);
        match to.zip(from).filter(|(to, from)| to.len() == from.len()) {
            Some((to, from)) => to.copy_from_slice(from),
            None => return Err(changed()),
        }
    }
    Ok(())
}

/// An error that checks before should prevent.
pub fn changed() -> Error {
    Error::Msg("a tensor of a batch has changed meanwhile".to_owned()).bt()
}

/// Device memory that is not initialized, and its address. `None` for the types that candle only stores.
///
/// # Safety
/// It is written before it is read.
pub unsafe fn uninitialized(
    device: &CudaDevice,
    dtype: DType,
    len: usize,
) -> CandleResult<Option<(CudaStorageSlice, CUdeviceptr)>> {
    macro_rules! of {
        ($($dtype:ident)+) => {
            match dtype {
                $(DType::$dtype => {
                    // SAFETY: the same contract.
                    let (slice, address) = unsafe { allocate(device, len) }?;
                    Some((CudaStorageSlice::$dtype(slice), address))
                })+
                _ => None,
            }
        };
    }
    Ok(of_elements!(of))
}

/// # Safety
/// As for [`uninitialized`].
unsafe fn allocate<T: DeviceRepr>(
    device: &CudaDevice,
    len: usize,
) -> CandleResult<(CudaSlice<T>, CUdeviceptr)> {
    // The driver refuses to allocate nothing.
    // SAFETY: the same contract.
    let mut slice = unsafe { device.alloc(len.max(1)) }?;
    let stream = device.cuda_stream();
    let (address, _) = slice.device_ptr_mut(&stream);
    Ok((slice, address))
}
