mod load;
mod slot;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::{CudaDevice, DType, Device, Tensor};

use crate::error::{Error, Resource, Result};
use load::{CopyStream, Load, Shared};
use slot::{Ring, fill, places};

/// The way to one GPU.
#[derive(Debug)]
pub struct Lane(Arc<Shared>);

impl super::Lane for Lane {
    fn pin(&self, tensors: Vec<&mut Tensor>) -> Option<Box<dyn super::Load>> {
        match self.try_pin(tensors) {
            Ok(load) => Some(Box::new(load?)),
            Err(error) => {
                self.warn(&error);
                None
            }
        }
    }
}

impl Lane {
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Ok(Self(Arc::new(Shared {
            ring: Ring::default(),
            stream: CopyStream::new(device.cuda_stream().context())?,
            has_warned: AtomicBool::new(false),
            device: device.clone(),
        })))
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
