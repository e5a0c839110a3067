use std::time::Duration;

use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, result, sys};

use super::recovery::drain;
use crate::error::Result;

/// A point in the work of a stream.
#[derive(Debug)]
pub(crate) struct Event(CudaEvent);

impl Event {
    /// Marks the end of the work that was queued so far.
    pub(crate) fn record(stream: &CudaStream) -> Result<Self> {
        // cudarc would return an error that an earlier drop has stored.
        drain(stream.context())?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        Ok(Self(stream.record_event(Some(flags))?))
    }

    /// The time since `start`, an event of the same stream; `None` while the device has not reached this one.
    pub(crate) fn since(&self, start: &Self) -> Result<Option<Duration>> {
        if !self.0.try_is_complete()? {
            return Ok(None);
        }
        // SAFETY: both events are alive, were created with timing, and were recorded on one stream. cudarc's own function would wait for them.
        let milliseconds = unsafe { result::event::elapsed(start.0.cu_event(), self.0.cu_event()) };
        Ok(Duration::try_from_secs_f32(milliseconds? / 1e3).ok())
    }
}
