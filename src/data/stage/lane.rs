//! The way of a batch to one GPU: copies from a slot, on a stream of their own, behind what candle has queued so far and awaited by what it queues
//! next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::cuda_backend::cudarc::driver::result::{memcpy_htod_async, stream};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdeviceptr, CUevent_wait_flags, CUstream_st,
};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, DriverError, result};
use candle_core::cuda_backend::{CudaStorage, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, DType, Device, Result as CandleResult, Storage, Tensor};

use super::slot::{Ring, Slot, SlotTensor, changed, fill, places, uninitialized};
use crate::error::{Error, Resource, Result, invalid};
use crate::memory::{Handle, drain, while_dropping};

/// The way to one GPU.
#[derive(Debug)]
pub struct Lane(Arc<Shared>);

impl super::Lane for Lane {
    fn pin(&self, tensors: Vec<&mut Tensor>) -> Option<Box<dyn super::Load>> {
        match self.try_pin(tensors) {
            Ok(load) => Some(Box::new(load?)),
            Err(error) => {
                self.warn(&error);
                None
            }
        }
    }
}

impl Lane {
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Ok(Self(Arc::new(Shared {
            ring: Ring::default(),
            stream: CopyStream::new(device.cuda_stream().context())?,
            has_warned: AtomicBool::new(false),
            device: device.clone(),
        })))
    }

    fn try_pin(&self, tensors: Vec<&mut Tensor>) -> Result<Option<Load>> {
        let places = places(&tensors);
        let Some(bytes) = places.iter().flatten().map(|place| place.end).max() else {
            return Ok(None);
        };
        let context = &self.0.stream.context;
        let mut slot = self.0.ring.take(context, bytes.max(1))?;
        let filled = fill(&mut slot, &tensors, &places);
        // If something fails, dropping it gives the slot back.
        let load = Load::new(&self.0, slot, places);
        filled?;
        let empty = Tensor::zeros(0, DType::U8, &Device::Cpu)?;
        for (tensor, place) in tensors.into_iter().zip(&load.places) {
            if place.is_some() {
                *tensor = empty.clone();
            }
        }
        Ok(Some(load))
    }

    fn warn(&self, error: &Error) {
        if self.0.has_warned.swap(true, Relaxed) {
            return;
        }
        match error {
            Error::ResourceExhausted(exhausted) if exhausted.resource == Resource::PinnedMemory => {
                tracing::warn!(
                    %error,
                    "no page-locked memory for batches: they are copied to the device from pageable memory, while training waits. \
                     Free memory on the host, or read fewer batches ahead"
                );
            }
            _ => tracing::warn!(%error, "a batch was not copied to page-locked memory"),
        }
    }
}

/// A stream for copies. One that cudarc makes would have every later use of every tensor in the context recorded in events.
#[derive(Debug)]
struct CopyStream {
    stream: Handle<CUstream_st>,
    context: Arc<CudaContext>,
}

impl CopyStream {
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        drain(context)?;
        context.bind_to_thread().w()?;
        let stream = stream::create(stream::StreamKind::NonBlocking).w()?;
        Ok(Self {
            stream: Handle(stream),
            context: Arc::clone(context),
        })
    }

    /// Later copies wait for an event. The context is bound to this thread.
    fn wait(&self, event: &CudaEvent) -> Result<(), DriverError> {
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive, and the driver's calls on a stream may come from any thread.
        unsafe { result::stream::wait_event(self.stream.0, event.cu_event(), flags) }
    }

    /// Marks the end of the copies that were queued so far. The context is bound to this thread.
    fn record(&self, event: &CudaEvent) -> Result<(), DriverError> {
        // SAFETY: both are alive.
        unsafe { result::event::record(event.cu_event(), self.stream.0) }
    }

    /// Queues a copy. The context is bound to this thread.
    ///
    /// # Safety
    /// There is as much live device memory at the address, and until the copy is done it stays and nobody writes to `from`.
    unsafe fn copy(&self, to: CUdeviceptr, from: &[u8]) -> Result<(), DriverError> {
        // SAFETY: the same contract.
        unsafe { memcpy_htod_async(to, from, self.stream.0) }
    }

    /// Waits for all copies.
    fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: it is alive.
        unsafe { stream::synchronize(self.stream.0) }
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        while_dropping(&self.context, || {
            // SAFETY: nobody else has it. The driver finishes what is queued.
            unsafe { stream::destroy(self.stream.0) }
        });
    }
}

/// What the workers, the training thread and the batches between them share.
#[derive(Debug)]
struct Shared {
    ring: Ring,
    stream: CopyStream,
    has_warned: AtomicBool,
    device: CudaDevice,
}

impl Drop for Shared {
    /// A worker may be the last to hold candle's device, whose libraries need the context.
    fn drop(&mut self) {
        while_dropping(&self.stream.context, || Ok(()));
    }
}

/// The tensors of a batch in a slot, and perhaps on their way from there to the device.
#[derive(Debug)]
struct Load {
    shared: Arc<Shared>,
    /// `None` only while it is dropped.
    slot: Option<Slot>,
    /// Of each of the batch's tensors; `None` for one that is not in the slot.
    places: Vec<Option<SlotTensor>>,
    /// Where the copies go, once they are queued.
    on_device: Option<Vec<Option<Tensor>>>,
}

impl Load {
    fn new(shared: &Arc<Shared>, slot: Slot, places: Vec<Option<SlotTensor>>) -> Self {
        Self {
            shared: Arc::clone(shared),
            slot: Some(slot),
            places,
            on_device: None,
        }
    }

    fn allocate(&self, place: &SlotTensor) -> CandleResult<(Tensor, CUdeviceptr)> {
        let device = &self.shared.device;
        let len = place.shape.elem_count();
        // SAFETY: the copy writes to it before candle's stream goes on.
        let allocated = unsafe { uninitialized(device, place.dtype, len) }?;
        let (slice, address) = allocated.ok_or_else(changed)?;
        let storage = Storage::Cuda(CudaStorage {
            slice,
            device: device.clone(),
        });
        let shape = place.shape.clone();
        let tensor = Tensor::from_storage(storage, shape, BackpropOp::none(), false);
        Ok((tensor, address))
    }

    /// Queues the copies, after the allocations and before the slot's event.
    fn queue(&self, slot: &Slot, addresses: &[CUdeviceptr]) -> CandleResult<()> {
        let copies = &self.shared.stream;
        let computing = self.shared.device.cuda_stream();
        slot.event.record(&computing).w()?;
        copies.wait(&slot.event).w()?;
        // SAFETY: nobody writes to the slot: it is in the hands of `self`, or in the ring, which waits for the event.
        let memory = unsafe { slot.memory.read() };
        for (place, &address) in self.places.iter().zip(addresses) {
            let Some(place) = place else { continue };
            let from = memory.get(place.start..place.end).ok_or_else(changed)?;
            if from.is_empty() {
                continue;
            }
            // SAFETY: the tensor at the address has as many bytes, and it is dropped after candle's stream, on which it is freed, has
            // waited for the copy.
            unsafe { copies.copy(address, from) }.w()?;
        }
        copies.record(&slot.event).w()
    }
}

impl super::Load for Load {
    fn depart(&mut self) -> Result<()> {
        let (None, Some(slot)) = (&self.on_device, &self.slot) else {
            return Ok(());
        };
        let copies = &self.shared.stream;
        drain(&copies.context)?;
        let (mut tensors, mut addresses) = (Vec::new(), Vec::new());
        for place in &self.places {
            let (tensor, address) = match place {
                Some(place) => {
                    let (tensor, address) = self.allocate(place)?;
                    (Some(tensor), address)
                }
                None => (None, 0),
            };
            tensors.push(tensor);
            addresses.push(address);
        }
        // From here on the tensors are dropped after the copies.
        let queued = self.queue(slot, &addresses);
        if let Err(error) = queued {
            // Only a lost device cannot be waited for, and it writes nothing more.
            let _ = copies.synchronize();
            return Err(error.into());
        }
        self.on_device = Some(tensors);
        Ok(())
    }

    fn arrive(&mut self, tensors: &mut [&mut Tensor]) -> Result<()> {
        if self.places.len() != tensors.len() {
            return Err(invalid!(
                Data,
                "`Tensors::tensors_mut` of a batch must always return the same tensors, but their number has changed"
            ));
        }
        self.depart()?;
        if let Some(slot) = &self.slot {
            drain(&self.shared.stream.context)?;
            let computing = self.shared.device.cuda_stream();
            computing.wait(&slot.event).w()?;
        }
        let arrived = self.on_device.take().unwrap_or_default();
        for (place, tensor) in tensors.iter_mut().zip(arrived) {
            if let Some(tensor) = tensor {
                **place = tensor;
            }
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        if let Some(tensors) = self.on_device.take() {
            let shared = &self.shared;
            while_dropping(&shared.stream.context, || {
                let computing = shared.device.cuda_stream();
                let waited = computing.wait(&slot.event);
                // Their memory is freed on candle's stream.
                let waited = waited.or_else(|_| shared.stream.synchronize());
                drop(tensors);
                waited
            });
        }
        self.shared.ring.give_back(slot);
    }
}
