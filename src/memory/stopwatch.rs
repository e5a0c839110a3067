//! The time that work takes on a device, without waiting for it.

use std::time::{Duration, Instant};

use candle_core::Device;

#[cfg(feature = "cuda")]
use super::cuda::Event;
use crate::error::Result;

/// Measures the device time of the work between [`start`](Self::start) and [`stop`](Self::stop).
#[derive(Debug)]
pub(crate) struct Stopwatch {
    device: Device,
    start: Option<Mark>,
    end: Option<Mark>,
}

/// A CUDA event on the device's stream, or the host's time on the CPU, where each operation has finished when it returns.
#[derive(Debug)]
enum Mark {
    Host(Instant),
    #[cfg(feature = "cuda")]
    Device(Event),
}

impl Mark {
    /// `None` for a device whose time cannot be read without waiting for it.
    fn now(device: &Device) -> Result<Option<Self>> {
        match device {
            Device::Cpu => Ok(Some(Self::Host(Instant::now()))),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => Ok(Some(Self::Device(Event::record(&cuda.cuda_stream())?))),
            _ => Ok(None),
        }
    }
}

impl Stopwatch {
    pub(crate) fn start(device: &Device) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            start: Mark::now(device)?,
            end: None,
        })
    }

    /// Marks the end of the work that was queued so far; the host goes on at once.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.end = Mark::now(&self.device)?;
        Ok(())
    }

    /// `None` before [`stop`](Self::stop), while the device has not finished the work, and on a device that cannot be timed.
    pub(crate) fn elapsed(&self) -> Result<Option<Duration>> {
        match (&self.start, &self.end) {
            (Some(Mark::Host(start)), Some(Mark::Host(end))) => Ok(Some(*end - *start)),
            #[cfg(feature = "cuda")]
            (Some(Mark::Device(start)), Some(Mark::Device(end))) => end.since(start),
            _ => Ok(None),
        }
    }
}
