use candle_core::{Device, Tensor};

use super::adjustment::{Adjustment, Counters};
use super::managed::{Managed, Origin, Snapshot, Update};
use crate::error::{OptimizerError, Result};
#[cfg(feature = "cuda")]
use crate::optim::cuda;
use crate::optim::rule::Rule;
use crate::optim::{Committed, cpu};

/// The state of all parameters that are not frozen, and the passes over them, on the device that they are on.
#[derive(Debug)]
pub enum Engine {
    Cpu(cpu::Engine),
    #[cfg(feature = "cuda")]
    Cuda(Box<cuda::Engine>),
}

impl Engine {
    pub fn new<R: Rule>(
        device: &Device,
        rule: &R,
        parameters: &[Managed],
        adjustment: &Adjustment,
    ) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Self::Cpu(cpu::Engine::new(rule, parameters, adjustment)?)),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let engine = cuda::Engine::new::<R>(device, parameters, adjustment)?;
                Ok(Self::Cuda(Box::new(engine)))
            }
            _ => Err(OptimizerError::Device {
                device: device.location(),
            }
            .into()),
        }
    }

    /// Takes over other parameters, with an origin for each, and counters. With an error nothing has changed.
    pub fn set_up<R: Rule>(
        &mut self,
        rule: &R,
        parameters: &[Managed],
        origins: Vec<Origin>,
        counters: Option<Counters>,
    ) -> Result<()> {
        match self {
            Self::Cpu(engine) => engine.set_up(rule, parameters, origins, counters),
            #[cfg(feature = "cuda")]
            Self::Cuda(engine) => engine.set_up::<R>(parameters, origins, counters),
        }
    }

    pub fn commit<R: Rule>(&mut self, update: &Update<'_, R>) -> Result<Committed> {
        match self {
            Self::Cpu(engine) => engine.commit(update),
            #[cfg(feature = "cuda")]
            Self::Cuda(engine) => engine.commit(update),
        }
    }

    /// The loss times the current loss scale.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        match self {
            Self::Cpu(engine) => Ok((loss * engine.counters().scale)?),
            #[cfg(feature = "cuda")]
            Self::Cuda(engine) => engine.scale(loss),
        }
    }

    pub fn counters(&self) -> Result<Counters> {
        match self {
            Self::Cpu(engine) => Ok(engine.counters()),
            #[cfg(feature = "cuda")]
            Self::Cuda(engine) => engine.counters(),
        }
    }

    /// Copies of the state of the parameter with this index.
    pub fn snapshot(&self, index: usize, parameter: &Managed) -> Result<Option<Snapshot>> {
        match self {
            Self::Cpu(engine) => Ok(engine.snapshot(index, parameter)),
            #[cfg(feature = "cuda")]
            Self::Cuda(engine) => engine.snapshot(index),
        }
    }
}
