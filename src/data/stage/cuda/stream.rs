use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::{memcpy_htod_async, stream};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdeviceptr, CUevent_wait_flags, CUstream_st,
};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, DriverError, result};

use crate::error::Result;
use crate::memory::{Handle, drain, while_dropping};

/// A stream for copies. One that cudarc makes would have every later use of every tensor in the context recorded in events.
#[derive(Debug)]
pub struct CopyStream {
    stream: Handle<CUstream_st>,
    context: Arc<CudaContext>,
}

impl CopyStream {
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        drain(context)?;
        context.bind_to_thread().w()?;
        let stream = stream::create(stream::StreamKind::NonBlocking).w()?;
        Ok(Self {
            stream: Handle(stream),
            context: Arc::clone(context),
        })
    }

    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Later copies wait for an event. The context is bound to this thread.
    pub fn wait(&self, event: &CudaEvent) -> Result<(), DriverError> {
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive, and the driver's calls on a stream may come from any thread.
        unsafe { result::stream::wait_event(self.stream.0, event.cu_event(), flags) }
    }

    /// Marks the end of the copies that were queued so far. The context is bound to this thread.
    pub fn record(&self, event: &CudaEvent) -> Result<(), DriverError> {
        // SAFETY: both are alive.
        unsafe { result::event::record(event.cu_event(), self.stream.0) }
    }

    /// Queues a copy. The context is bound to this thread.
    ///
    /// # Safety
    /// There is as much live device memory at the address, and until the copy is done it stays and nobody writes to `from`.
    pub unsafe fn copy(&self, to: CUdeviceptr, from: &[u8]) -> Result<(), DriverError> {
        // SAFETY: the same contract.
        unsafe { memcpy_htod_async(to, from, self.stream.0) }
    }

    /// Waits for all copies.
    pub fn synchronize(&self) -> Result<(), DriverError> {
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
