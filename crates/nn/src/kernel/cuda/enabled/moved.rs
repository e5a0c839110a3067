//! Tensors that leave a GPU for pinned memory of the host, and come back.
//!
//! Copies have a stream of their own. It waits for what the device's stream has queued before a copy, and the device's stream waits for the
//! copy before it uses or frees the device memory. Only the copy stream uses pinned memory, in its order, so a block that comes free may be
//! used again at once.

use std::ffi::c_void;
use std::sync::Arc;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::cudarc::driver::sys::{
    self, CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr, CUevent_wait_flags, CUresult, CUstream_st,
};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaEvent, DevicePtr, DriverError, result,
};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape, Storage, Tensor};
use parking_lot::Mutex;

use crate::kernel::cuda::{OrStays, Stays};
use crate::kernel::mismatch;

const NAME: &str = "offload";

/// What the driver answers.
type Driven = std::result::Result<(), DriverError>;

/// A pointer of the driver's, which any thread may use.
#[derive(Debug, Clone, Copy)]
struct Handle<T>(*mut T);

// SAFETY: the driver's calls on streams and pinned memory may come from any thread, and nothing here reads what it points to.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// Pinned memory for the tensors of one GPU, and the stream that copies them.
#[derive(Debug)]
pub struct Host {
    /// One that cudarc makes would have every later use of every tensor in the context recorded in events.
    copies: Handle<CUstream_st>,
    blocks: Mutex<Blocks>,
    device: CudaDevice,
}

#[derive(Debug, Default)]
struct Blocks {
    free: Vec<Block>,
    /// Bytes of all blocks, also of those in use.
    pinned: u64,
}

/// Pinned memory. The event marks what the copy stream waits for, and then the end of the copy.
#[derive(Debug)]
struct Block {
    start: Handle<c_void>,
    bytes: u64,
    event: CudaEvent,
}

impl Host {
    pub fn new(device: &CudaDevice) -> Result<Self> {
        device.cuda_stream().context().bind_to_thread().w()?;
        let copies = result::stream::create(result::stream::StreamKind::NonBlocking).w()?;
        Ok(Self {
            copies: Handle(copies),
            blocks: Mutex::default(),
            device: device.clone(),
        })
    }

    pub fn is_of(&self, device: &CudaDevice) -> bool {
        self.device.same_device(device)
    }

    /// Bytes of pinned memory, in use or not.
    pub fn pinned(&self) -> u64 {
        self.blocks.lock().pinned
    }

    /// A block of at least so many bytes, the smallest that is free, or a new one where there are at most `most` bytes in all.
    fn block(&self, bytes: u64, most: u64) -> Result<OrStays<Block>> {
        let mut blocks = self.blocks.lock();
        let fitting = blocks.free.iter().enumerate();
        let fitting = fitting.filter(|(_, block)| block.bytes >= bytes);
        if let Some((at, _)) = fitting.min_by_key(|(_, block)| block.bytes) {
            return Ok(Ok(blocks.free.swap_remove(at)));
        }
        let unused: u64 = blocks.free.iter().map(|block| block.bytes).sum();
        if (blocks.pinned - unused).saturating_add(bytes) > most {
            return Ok(Err(Stays::Limit));
        }
        let stream = self.device.cuda_stream();
        let context = stream.context();
        context.bind_to_thread().w()?;
        // Blocks that are too small make room for a larger one.
        if blocks.pinned.saturating_add(bytes) > most {
            self.synchronize().w()?;
        }
        while blocks.pinned.saturating_add(bytes) > most
            && let Some(block) = blocks.free.pop()
        {
            blocks.pinned -= block.bytes;
            block.unpin().w()?;
        }
        // SAFETY: a context is current, and nothing reads the memory before a copy has written it.
        let start = || unsafe { result::malloc_host(bytes as usize, CU_MEMHOSTALLOC_PORTABLE) };
        let event = context.new_event(None);
        match event.and_then(|event| Ok((event, start()?))) {
            Ok((event, start)) => {
                blocks.pinned += bytes;
                let start = Handle(start);
                Ok(Ok(Block {
                    start,
                    bytes,
                    event,
                }))
            }
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(Err(Stays::Refused)),
            Err(error) => Err(error).w()?,
        }
    }

    /// Waits for all copies.
    fn synchronize(&self) -> Driven {
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.copies.0) }
    }

    /// Queues the copy of a contiguous tensor that has all of its storage. `most` limits the bytes of pinned memory.
    pub fn leave(self: &Arc<Self>, tensor: &Tensor, most: u64) -> Result<OrStays<Away>> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else {
            return Err(mismatch(NAME));
        };
        let (from, len) = address(storage).ok_or_else(|| mismatch(NAME))?;
        if !layout.is_contiguous() || layout.shape().elem_count() != len {
            return Err(mismatch(NAME));
        }
        let dtype = storage.dtype();
        let bytes = (len * dtype.size_in_bytes()) as u64;
        let block = match self.block(bytes, most)? {
            Ok(block) => block,
            Err(stays) => return Ok(Err(stays)),
        };
        let mut away = Away {
            host: Arc::clone(self),
            block: Some(block),
            dtype,
            len,
            leaving: None,
            coming: None,
        };
        // SAFETY: the block has as many bytes, and the tensor too, which `leaving` holds until the device's stream waits for the copy.
        away.queue(|block, copies| unsafe {
            sys::cuMemcpyDtoHAsync_v2(block.start.0, from, bytes as usize, copies).result()
        })?;
        away.leaving = Some(tensor.detach());
        Ok(Ok(away))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let stream = self.device.cuda_stream();
        // Only a lost device cannot be waited for, and it copies nothing more.
        while_dropping(stream.context(), || self.synchronize());
        for block in self.blocks.lock().free.drain(..) {
            while_dropping(stream.context(), || block.unpin());
        }
        while_dropping(stream.context(), || {
            // SAFETY: nobody else has the stream.
            unsafe { result::stream::destroy(self.copies.0) }
        });
    }
}

impl Block {
    /// Gives the memory back to the host. No copy uses it, and the context is bound to this thread.
    fn unpin(self) -> Driven {
        // SAFETY: `Host::block` allocated it, and nobody else has it.
        unsafe { result::free_host(self.start.0) }
    }
}

/// The elements of a tensor in pinned memory.
pub struct Away {
    host: Arc<Host>,
    /// `None` only while it is dropped.
    block: Option<Block>,
    dtype: DType,
    len: usize,
    /// What the copy stream reads, until the device's stream waits for that.
    leaving: Option<Tensor>,
    /// What it writes.
    coming: Option<CudaStorage>,
}

impl Away {
    /// Has the device's stream wait for the copy to the host, so that the device memory may be freed there.
    pub fn left(&mut self) -> Result<()> {
        if self.leaving.is_some() {
            self.wait().w()?;
            self.leaving = None;
        }
        Ok(())
    }

    /// Allocates device memory and queues the copy to it, unless that was done.
    pub fn depart(&mut self) -> Result<()> {
        self.left()?;
        if self.coming.is_some() {
            return Ok(());
        }
        // SAFETY: the copy writes all of it before the device's stream, which waits for the copy, reads or frees it.
        let storage = unsafe { self.host.device.alloc_uninit(&self.len.into(), self.dtype) }?;
        let (to, len) = address(&storage).ok_or_else(|| mismatch(NAME))?;
        let bytes = len * self.dtype.size_in_bytes();
        // SAFETY: both have as many bytes, and `coming` holds the device memory until the device's stream has waited for the copy.
        self.queue(|block, copies| unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, block.start.0, bytes, copies).result()
        })?;
        self.coming = Some(storage);
        Ok(())
    }

    /// The tensor on the device, outside of any graph or a variable, whose storage nobody else has. The device's stream waits for the copy.
    pub fn arrive(&mut self, shape: &Shape, is_variable: bool) -> Result<Tensor> {
        self.depart()?;
        self.wait().w()?;
        let storage = self.coming.take().ok_or_else(|| mismatch(NAME))?;
        let (storage, graph) = (Storage::Cuda(storage), BackpropOp::none());
        Ok(Tensor::from_storage(
            storage,
            shape.clone(),
            graph,
            is_variable,
        ))
    }

    /// Queues a copy behind what the device's stream has queued.
    fn queue(&self, copy: impl FnOnce(&Block, sys::CUstream) -> Driven) -> Result<()> {
        let block = self.block.as_ref().ok_or_else(|| mismatch(NAME))?;
        let copies = self.host.copies.0;
        block.event.record(&self.host.device.cuda_stream()).w()?;
        let (event, flags) = (
            block.event.cu_event(),
            CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
        );
        // SAFETY: stream and event are alive.
        let waits = unsafe { result::stream::wait_event(copies, event, flags) };
        let queued = waits.and_then(|()| copy(block, copies));
        // SAFETY: stream and event are alive.
        let queued = queued.and_then(|()| unsafe { result::event::record(event, copies) });
        if queued.is_err() {
            // Only a lost device cannot be waited for, and it copies nothing more.
            let _ = self.host.synchronize();
        }
        queued.w()
    }

    /// Has the device's stream wait for the last copy.
    fn wait(&self) -> Driven {
        let computing = self.host.device.cuda_stream();
        match &self.block {
            Some(block) => computing.wait(&block.event),
            None => Ok(()),
        }
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        if self.leaving.is_some() || self.coming.is_some() {
            let stream = self.host.device.cuda_stream();
            while_dropping(stream.context(), || {
                let waited = self.wait().or_else(|_| self.host.synchronize());
                (self.leaving, self.coming) = (None, None);
                waited
            });
        }
        self.host.blocks.lock().free.extend(self.block.take());
    }
}

/// The address of a storage of floats, and how many elements it has.
fn address(storage: &CudaStorage) -> Option<(CUdeviceptr, usize)> {
    macro_rules! of {
        ($($dtype:ident)+) => {
            match &storage.slice {
                $(CudaStorageSlice::$dtype(slice) => {
                    let (start, _) = slice.device_ptr(slice.stream());
                    Some((start, slice.len()))
                })+
                _ => None,
            }
        };
    }
    of!(F32 F64 F16 BF16)
}

/// Does a part of a drop with the context bound to this thread. An error is stored in the context, as cudarc's own drops do.
fn while_dropping(context: &CudaContext, work: impl FnOnce() -> Driven) {
    // An error that an earlier drop has left keeps the context from being bound the first time. It is kept for the next caller.
    let earlier = context.bind_to_thread();
    if earlier.is_err() {
        context.record_err(context.bind_to_thread());
    }
    context.record_err(work());
    context.record_err(earlier);
}
