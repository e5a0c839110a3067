use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::cuda_backend::cudarc::driver::result::stream;
use candle_core::cuda_backend::cudarc::driver::sys::cuMemHostGetDevicePointer_v2;

use crate::error::{Error, Remedy, Result};
use crate::memory::{PageLocked, while_dropping};

/// Of the first byte of each tensor: what kernels load at once, and a line of the GPU's cache.
pub const ALIGNMENT: usize = 128;

/// Page-locked host memory that kernels on one stream read and write in place.
#[derive(Debug)]
pub struct Pinned {
    memory: PageLocked,
    address: u64,
    stream: Arc<CudaStream>,
}

impl Pinned {
    /// Zeroed memory; `bytes` is not 0.
    pub fn zeros(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self> {
        let mut pinned = Self {
            memory: PageLocked::zeros(stream.context(), bytes).map_err(refused)?,
            address: 0,
            stream: stream.clone(),
        };
        let start = pinned.memory.start().cast();
        // SAFETY: a place for one address, and memory that is mapped for the device.
        let status = unsafe { cuMemHostGetDevicePointer_v2(&mut pinned.address, start, 0) };
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
        // SAFETY: the same contract.
        unsafe { self.memory.write() }
    }

    /// Its bytes, after all work on the stream is finished.
    ///
    /// # Safety
    /// No work that writes to it is launched before the result is dropped.
    pub unsafe fn read(&self) -> Result<&[u8]> {
        self.stream.synchronize().w()?;
        // SAFETY: only work on the stream writes to it, it is finished, and the caller launches no more.
        Ok(unsafe { self.memory.read() })
    }
}

impl Drop for Pinned {
    /// Waits for the stream, so that no kernel finds the memory gone.
    fn drop(&mut self) {
        while_dropping(self.stream.context(), || {
            // SAFETY: the stream lives as long as `self`.
            unsafe { stream::synchronize(self.stream.cu_stream()) }
        });
    }
}

fn refused(error: Error) -> Error {
    match error {
        Error::ResourceExhausted(mut exhausted) => {
            let advice = "a smaller fraction in `moments_on_host`, `HostUpdate::Device`, or more free memory on the host";
            exhausted.remedies.push(Remedy::new(advice, None));
            Error::ResourceExhausted(exhausted)
        }
        error => error,
    }
}
