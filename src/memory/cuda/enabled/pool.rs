//! The driver's stream-ordered memory pools, for which cudarc has only unsafe functions.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::fmt;
use std::mem::size_of;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::result::{self, device, mem_pool};
use candle_core::cuda_backend::cudarc::driver::sys::{
    self, CUmemPool_attribute as Attribute, CUresult,
};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError};
use parking_lot::Mutex;

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

/// A memory pool of a device. An owned one is destroyed when dropped, while allocations from it live on.
#[derive(Debug)]
pub(super) struct Pool {
    handle: Handle<sys::CUmemPoolHandle_st>,
    /// Keeps the primary context, and with it the pool's device, open.
    pub(super) context: Arc<CudaContext>,
    is_owned: bool,
}

impl Pool {
    /// An empty pool that may reserve `most` bytes, rounded by the driver; `None` for no maximum. Drivers before CUDA 12.2 know no
    /// maximum and must not be given one.
    pub(super) fn new(context: &Arc<CudaContext>, most: Option<u64>) -> Result<Self, DriverError> {
        // 0 would mean no maximum.
        let most = most.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX).max(1));
        let properties = PoolProperties {
            allocation_type: ALLOCATION_TYPE_PINNED,
            handle_types: 0,
            location_type: LOCATION_TYPE_DEVICE,
            location_id: context.cu_device(),
            security_attributes: std::ptr::null_mut(),
            max_size: most.unwrap_or(0),
            reserved: [0; 56],
        };
        // SAFETY: `PoolProperties` is `CUmemPoolProps`, byte for byte, in every version that has pools, and outlives the call.
        let handle = unsafe { mem_pool::create((&raw const properties).cast()) }?;
        Ok(Self::with(handle, context, true))
    }

    /// The pool that serves the device's allocations now.
    pub(super) fn current(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        // SAFETY: the driver returned the context's device.
        let handle = unsafe { device::get_mem_pool(context.cu_device()) }?;
        Ok(Self::with(handle, context, false))
    }

    fn with(handle: sys::CUmemoryPool, context: &Arc<CudaContext>, is_owned: bool) -> Self {
        Self {
            handle: Handle(handle),
            context: Arc::clone(context),
            is_owned,
        }
    }

    /// Two values with one ID are the same pool.
    pub(super) fn id(&self) -> usize {
        self.handle.0.addr()
    }

    /// Serves every later allocation of the process on this device.
    pub(super) fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: the pool exists, as for `get`, on the device of its context. The driver's functions on pools may be called from any thread.
        unsafe { device::set_mem_pool(self.context.cu_device(), self.handle.0) }
    }

    /// Bytes that tensors hold.
    pub(super) fn used(&self) -> Result<u64, DriverError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// Bytes taken from the device.
    pub(super) fn reserved(&self) -> Result<u64, DriverError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    pub(super) fn reserved_high(&self) -> Result<u64, DriverError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
    }

    pub(super) fn restart_reserved_high(&self) -> Result<(), DriverError> {
        self.set(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)
    }

    /// The highest use since its last restart.
    pub(super) fn used_high(&self) -> Result<u64, DriverError> {
        let high = self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
        // Whether a reset peak starts at the present use or at 0 is not documented.
        Ok(high.max(self.used()?))
    }

    pub(super) fn restart_used_high(&self) -> Result<(), DriverError> {
        self.set(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)
    }

    /// Sets how many reserved bytes a synchronization leaves in the pool.
    pub(super) fn keep_at_sync(&self, bytes: u64) -> Result<(), DriverError> {
        self.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)
    }

    /// Returns all unused memory to the device, where free pieces are merged.
    pub(super) fn trim(&self) -> Result<(), DriverError> {
        // SAFETY: the pool exists, as for `get`.
        unsafe { mem_pool::trim_to(self.handle.0, 0) }
    }

    /// Makes the pool reserve this many bytes, and waits until every stream can use them; false if the driver has no room for them.
    pub(super) fn fill(&self, bytes: u64) -> Result<bool, DriverError> {
        if bytes == 0 {
            return Ok(true);
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let stream = self.context.default_stream();
        self.context.bind_to_thread()?;
        // SAFETY: the pool exists, as for `get`, and the stream is borrowed. The memory is never read.
        let allocated = unsafe { mem_pool::alloc_async(self.handle.0, bytes, stream.cu_stream()) };
        let address = match allocated {
            Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Ok(false),
            allocated => allocated?,
        };
        // SAFETY: the address was allocated above and is not used again.
        unsafe { result::free_async(address, stream.cu_stream()) }?;
        stream.synchronize()?;
        Ok(true)
    }

    fn get(&self, attribute: Attribute) -> Result<u64, DriverError> {
        let mut value = 0u64;
        // SAFETY: an owned pool exists as long as `self`. Another one is the current pool or was so before ours, and its creator keeps
        // it alive, as CUDA keeps its default pool. Every attribute used in this file is a `cuuint64_t`.
        unsafe { mem_pool::get_attribute(self.handle.0, attribute, (&raw mut value).cast()) }?;
        Ok(value)
    }

    fn set(&self, attribute: Attribute, mut value: u64) -> Result<(), DriverError> {
        // SAFETY: as for `get`.
        unsafe { mem_pool::set_attribute(self.handle.0, attribute, (&raw mut value).cast()) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.is_owned
            // SAFETY: `self` owns the pool, and its handle is not used any more.
            && let Err(error) = unsafe { mem_pool::destroy(self.handle.0) }
        {
            tracing::warn!(%error, "a memory pool could not be destroyed");
        }
    }
}

/// Free and total bytes of the device. Unlike cudarc's own function it does not return an error that a drop has stored in the context.
pub(super) fn free_and_total(context: &CudaContext) -> Result<(u64, u64), DriverError> {
    // SAFETY: the context lives as long as it is borrowed.
    unsafe { result::ctx::set_current(context.cu_ctx()) }?;
    let (free, total) = result::mem_get_info()?;
    Ok((free as u64, total as u64))
}

static CURRENT: Mutex<BTreeMap<usize, CurrentPool>> = Mutex::new(BTreeMap::new());

struct CurrentPool {
    /// The pool that was current before.
    before: Pool,
    /// The [`id`](Pool::id) of our pool.
    ours: usize,
    /// Whether our pool has been preallocated and must keep its memory.
    is_filled: bool,
}

/// Makes a pool of ours serve every later allocation of the process on its device.
pub(super) fn take(pool: &Pool, is_filled: bool) -> Result<(), DriverError> {
    let mut pools = CURRENT.lock();
    let before = Pool::current(&pool.context)?;
    pool.make_current()?;
    let ordinal = pool.context.ordinal();
    // If another pool of ours was current, it is about to go: the pool before it is the one to restore.
    let before = match pools.remove(&ordinal) {
        Some(entry) if entry.ours == before.id() => entry.before,
        _ => before,
    };
    let entry = CurrentPool {
        before,
        ours: pool.id(),
        is_filled,
    };
    pools.insert(ordinal, entry);
    Ok(())
}

/// Returns the current pool's unused memory to the device. A preallocated pool takes it again, unless another process was quicker.
pub(super) fn trim_current(context: &Arc<CudaContext>) -> Result<(), DriverError> {
    // While the lock is held no pool of ours stops being current, and so none is destroyed.
    let pools = CURRENT.lock();
    let current = Pool::current(context)?;
    let before = current.reserved()?;
    current.trim()?;
    let entry = pools.get(&context.ordinal());
    if entry.is_some_and(|entry| entry.is_filled && entry.ours == current.id()) {
        let _ = current.fill(before.saturating_sub(current.reserved()?));
    }
    Ok(())
}

/// Makes the former pool current again, unless a pool that is not ours has become current since.
pub(super) fn leave(pool: &Pool) {
    let mut pools = CURRENT.lock();
    if let Entry::Occupied(entry) = pools.entry(pool.context.ordinal())
        && entry.get().ours == pool.id()
    {
        let before = entry.remove().before;
        let left = Pool::current(&pool.context).and_then(|current| match current.id() {
            id if id == pool.id() => before.make_current(),
            _ => Ok(()),
        });
        if let Err(error) = left {
            tracing::warn!(%error, "the device's former memory pool could not be made current again");
        }
    }
}

/// The address of something that belongs to the driver or to NCCL, such as a stream. To hold it or to send it to another thread reads nothing.
/// The calls that are given it are `unsafe`, and each says why it is sound.
pub(crate) struct Handle<T>(pub(crate) *mut T);

// SAFETY: an address may be known to any thread; nothing behind it is accessed without `unsafe`.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.0, f)
    }
}
