//! The time that work takes on a device, without waiting for it.

use std::time::{Duration, Instant};

use candle_core::Device;

#[cfg(feature = "cuda")]
use super::cuda::Events;
use crate::error::Result;

/// Measures the device time of the work between [`start`](Self::start) and [`stop`](Self::stop): by CUDA events on the device's stream, and by
/// the host's clock on the CPU, where each operation has finished when it returns.
#[derive(Debug)]
pub(crate) enum Stopwatch {
    Host {
        start: Instant,
        elapsed: Option<Duration>,
    },
    #[cfg(feature = "cuda")]
    Device(Events),
    /// A device whose time cannot be read without waiting for it.
    Untimed,
}

impl Stopwatch {
    pub(crate) fn start(device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Some(events) = Events::start(device)? {
            return Ok(Self::Device(events));
        }
        Ok(match device {
            Device::Cpu => Self::Host {
                start: Instant::now(),
                elapsed: None,
            },
            _ => Self::Untimed,
        })
    }

    /// Marks the end of the work that was queued so far; the host goes on at once.
    pub(crate) fn stop(&mut self) -> Result<()> {
        match self {
            Self::Host { start, elapsed } => *elapsed = Some(start.elapsed()),
            #[cfg(feature = "cuda")]
            Self::Device(events) => events.stop()?,
            Self::Untimed => {}
        }
        Ok(())
    }

    /// The time; `None` before [`stop`](Self::stop), while the device has not finished the work, and on a device that cannot be timed.
    pub(crate) fn elapsed(&self) -> Result<Option<Duration>> {
        match self {
            Self::Host { elapsed, .. } => Ok(*elapsed),
            #[cfg(feature = "cuda")]
            Self::Device(events) => events.elapsed(),
            Self::Untimed => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_s_time_is_known_after_the_end() {
        let mut watch = Stopwatch::start(&Device::Cpu).unwrap();
        assert_eq!(watch.elapsed().unwrap(), None);
        std::thread::sleep(Duration::from_millis(2));
        watch.stop().unwrap();
        let elapsed = watch.elapsed().unwrap();
        assert!(elapsed >= Some(Duration::from_millis(2)), "{elapsed:?}");
    }

    /// On the simulated driver or a real GPU, whichever the tests run on.
    #[cfg(feature = "cuda")]
    #[test]
    fn a_device_s_time_is_known_once_its_work_has_finished() {
        let Ok(device) = Device::new_cuda_with_stream(0) else {
            return;
        };
        let mut watch = Stopwatch::start(&device).unwrap();
        assert_eq!(watch.elapsed().unwrap(), None);
        watch.stop().unwrap();
        device.synchronize().unwrap();
        assert!(watch.elapsed().unwrap().is_some());
    }
}
