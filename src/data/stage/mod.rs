//! Batches on their way to a device.
//!
//! On a GPU a worker copies a batch's tensors into a slot of page-locked memory, and the pageable ones are dropped. While the batch before it
//! is used, the training thread allocates the tensors on the device, on candle's stream, and queues their copies on a stream for copies,
//! which first waits for the allocation. When the batch is wanted, candle's stream waits for the copies. The slot goes back to the
//! workers with an event behind its copies, and a worker waits for that before it writes to the slot again.

#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "calls the driver")]
mod lane;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "calls the driver")]
mod slot;

use std::fmt::Debug;

use candle_core::{Device, Tensor};

use super::Tensors;
use crate::error::{Error, Phase, Remedy, Resource, Result};
use crate::memory::unmask;

/// The way to one GPU.
trait Lane: Debug + Send + Sync {
    /// Moves those tensors that are on the host into page-locked memory. `None` if there are none, or no memory: nothing has changed then.
    fn pin(&self, tensors: Vec<&mut Tensor>) -> Option<Box<dyn Load>>;
}

/// The tensors of a batch in page-locked memory, and perhaps on their way from there to the device.
pub(super) trait Load: Debug + Send + Sync {
    /// Allocates the tensors on the device and queues their copies, unless that was done. After an error nothing is allocated.
    fn depart(&mut self) -> Result<()>;

    /// Has candle's stream wait for the copies, and puts those of the batch's tensors that were moved in their places.
    fn arrive(&mut self, tensors: &mut [&mut Tensor]) -> Result<()>;
}

/// Takes batches to a device.
#[derive(Debug)]
pub(super) struct Stage {
    device: Option<Device>,
    /// Of a GPU.
    lane: Option<Box<dyn Lane>>,
}

impl Stage {
    /// Leaves batches where they are without a device.
    pub(super) fn new(device: Option<Device>) -> Result<Self> {
        let lane: Option<Box<dyn Lane>> = match &device {
            #[cfg(feature = "cuda")]
            Some(Device::Cuda(device)) => Some(Box::new(lane::Lane::new(device)?)),
            _ => None,
        };
        Ok(Self { device, lane })
    }

    /// Whether batches are copied before they are wanted.
    pub(super) fn copies_ahead(&self) -> bool {
        self.lane.is_some()
    }

    /// Moves the batch's tensors to page-locked memory. `None` if there is nothing to move or no memory: they are as they were.
    pub(super) fn pin(&self, batch: &mut impl Tensors) -> Option<Box<dyn Load>> {
        self.lane.as_ref()?.pin(batch.tensors_mut())
    }

    /// Puts the batch's tensors on the device. After an error it can be tried again.
    pub(super) fn deliver(
        &self,
        batch: &mut impl Tensors,
        load: &mut Option<Box<dyn Load>>,
    ) -> Result<()> {
        let Some(device) = &self.device else {
            return Ok(());
        };
        put(batch, load, device).map_err(|error| {
            let mut error = unmask(error, device).in_phase(Phase::Transfer);
            if let Error::ResourceExhausted(exhausted) = &mut error
                && exhausted.resource == Resource::DeviceMemory
            {
                let advice = "smaller batches in the loader";
                exhausted.remedies.push(Remedy::new(advice, None));
            }
            error
        })
    }
}

fn put(batch: &mut impl Tensors, load: &mut Option<Box<dyn Load>>, device: &Device) -> Result<()> {
    let mut tensors = batch.tensors_mut();
    if let Some(pinned) = load {
        pinned.arrive(&mut tensors)?;
        *load = None;
    }
    for tensor in tensors {
        if tensor.device().same_device(device) {
            continue;
        }
        let is_between_gpus = tensor.device().is_cuda() && device.is_cuda();
        // Nothing else orders the copy after what writes the tensor, and before its memory is used again.
        if is_between_gpus {
            tensor.device().synchronize()?;
        }
        let moved = tensor.to_device(device)?;
        if is_between_gpus {
            device.synchronize()?;
        }
        *tensor = moved;
    }
    Ok(())
}
