use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use candle_core::{DType, Device, Tensor};

use super::load::Load;
use super::place::{fill, places};
use super::shared::Shared;
use crate::error::{Error, Resource, Result};

/// The way to one GPU.
#[derive(Debug)]
pub struct Lane(Arc<Shared>);

impl Lane {
    /// `None` for a device that is not a GPU of NVIDIA's.
    pub fn new(device: &Device) -> Result<Option<Self>> {
        match device {
            Device::Cuda(device) => Ok(Some(Self(Arc::new(Shared::new(device)?)))),
            _ => Ok(None),
        }
    }

    /// Moves those tensors that are on the host into a slot. `None` if there are none, or no slot: nothing has changed then.
    pub fn pin(&self, tensors: Vec<&mut Tensor>) -> Option<Load> {
        self.try_pin(tensors).unwrap_or_else(|error| {
            self.warn(&error);
            None
        })
    }

    fn try_pin(&self, tensors: Vec<&mut Tensor>) -> Result<Option<Load>> {
        let places = places(&tensors);
        let Some(bytes) = places.iter().flatten().map(|place| place.end).max() else {
            return Ok(None);
        };
        let context = self.0.stream.context();
        let mut slot = self.0.ring.take(context, bytes.max(1))?;
        let filled = fill(&mut slot, &tensors, &places);
        // If something fails, dropping it gives the slot back.
        let load = Load::new(&self.0, slot, places);
        filled?;
        let empty = Tensor::zeros(0, DType::U8, &Device::Cpu)?;
        for (tensor, place) in tensors.into_iter().zip(load.places()) {
            if place.is_some() {
                *tensor = empty.clone();
            }
        }
        Ok(Some(load))
    }

    fn warn(&self, error: &Error) {
        if self.0.has_warned.swap(true, Relaxed) {
            return;
        }
        match error {
            Error::ResourceExhausted(exhausted) if exhausted.resource == Resource::PinnedMemory => {
                tracing::warn!(
                    %error,
                    "no page-locked memory for batches: they are copied to the device from pageable memory, while training waits. \
                     Free memory on the host, or read fewer batches ahead"
                );
            }
            _ => tracing::warn!(%error, "a batch was not copied to page-locked memory"),
        }
    }
}
