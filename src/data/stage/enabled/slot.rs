use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, result};
use parking_lot::Mutex;

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
