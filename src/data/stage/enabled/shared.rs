use std::sync::atomic::AtomicBool;

use candle_core::CudaDevice;

use super::slot::Ring;
use super::stream::CopyStream;
use crate::error::Result;
use crate::memory::while_dropping;

/// What the workers, the training thread and the batches between them share.
#[derive(Debug)]
pub struct Shared {
    pub ring: Ring,
    pub stream: CopyStream,
    pub has_warned: AtomicBool,
    pub device: CudaDevice,
}

impl Shared {
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Ok(Self {
            ring: Ring::default(),
            stream: CopyStream::new(device.cuda_stream().context())?,
            has_warned: AtomicBool::new(false),
            device: device.clone(),
        })
    }
}

impl Drop for Shared {
    /// A worker may be the last to hold candle's device, whose libraries need the context.
    fn drop(&mut self) {
        while_dropping(self.stream.context(), || Ok(()));
    }
}
