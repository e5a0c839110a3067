use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::result::{self, DriverError};
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, sys};

use super::recovery::{drain, driver_error};
use crate::error::Result;

/// Two points in the work of a device's stream, and the time between them.
#[derive(Debug)]
pub(crate) struct Events {
    stream: Arc<CudaStream>,
    start: CudaEvent,
    end: CudaEvent,
    is_stopped: bool,
}

impl Events {
    /// `None` for a device that is not CUDA's.
    pub(crate) fn start(device: &Device) -> Result<Option<Self>> {
        let Device::Cuda(cuda) = device else {
            return Ok(None);
        };
        let stream = cuda.cuda_stream();
        // cudarc would return an error that an earlier drop has stored.
        drain(stream.context())?;
        let new = || {
            let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
            stream.context().new_event(Some(flags))
        };
        let (start, end) = (new().map_err(driver_error)?, new().map_err(driver_error)?);
        record(&start, &stream).map_err(driver_error)?;
        Ok(Some(Self {
            stream,
            start,
            end,
            is_stopped: false,
        }))
    }

    pub(crate) fn stop(&mut self) -> Result<()> {
        record(&self.end, &self.stream).map_err(driver_error)?;
        self.is_stopped = true;
        Ok(())
    }

    pub(crate) fn elapsed(&self) -> Result<Option<Duration>> {
        if !self.is_stopped || !self.end.try_is_complete().map_err(driver_error)? {
            return Ok(None);
        }
        // SAFETY: both events live as long as `self`, were created with timing, and were recorded on one stream.
        let milliseconds =
            unsafe { result::event::elapsed(self.start.cu_event(), self.end.cu_event()) };
        let seconds = milliseconds.map_err(driver_error)? / 1e3;
        Ok(Duration::try_from_secs_f32(seconds).ok())
    }
}

/// Unlike cudarc's own function it does not return an error that a drop has stored in the context.
fn record(event: &CudaEvent, stream: &CudaStream) -> Result<(), DriverError> {
    // SAFETY: the context lives as long as its stream.
    unsafe { result::ctx::set_current(stream.context().cu_ctx()) }?;
    // SAFETY: event and stream are alive, because both are borrowed, and belong to one context.
    unsafe { result::event::record(event.cu_event(), stream.cu_stream()) }
}
