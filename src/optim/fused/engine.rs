use candle_core::{Device, Tensor};

use super::adjustment::{Adjustment, Counters};
use super::managed::{Managed, Update};
use crate::error::{OptimizerError, Result};
use crate::optim::Committed;
use crate::optim::rule::Rule;
use crate::optim::{cpu, cuda};

/// Where the parameters lie, there the passes run.
#[derive(Debug)]
pub enum Engine {
    Cpu(cpu::Engine),
    Cuda(Box<cuda::Engine>),
}

/// What is kept for one parameter, at some moment.
#[derive(Debug)]
pub struct Snapshot {
    pub step: u64,
    pub tensors: Vec<Tensor>,
    pub master: Option<Tensor>,
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
            Device::Cuda(device) if cuda::IS_BUILT => {
                let engine = cuda::Engine::new(device, rule, parameters, adjustment)?;
                Ok(Self::Cuda(Box::new(engine)))
            }
            _ => Err(OptimizerError::Device {
                device: device.location(),
            }
            .into()),
        }
    }

    pub fn commit<R: Rule>(&mut self, update: &Update<'_, R>) -> Result<Committed> {
        match self {
            Self::Cpu(engine) => engine.commit(update),
            Self::Cuda(engine) => engine.commit(update),
        }
    }

    /// The loss, times the present loss scale.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        match self {
            Self::Cpu(engine) => Ok((loss * engine.counters().scale)?),
            Self::Cuda(engine) => engine.scale(loss),
        }
    }

    pub fn counters(&self) -> Result<Counters> {
        match self {
            Self::Cpu(engine) => Ok(engine.counters()),
            Self::Cuda(engine) => engine.counters(),
        }
    }

    /// Copies of what is kept for the parameter of this index.
    pub fn snapshot(&self, index: usize, parameter: &Managed) -> Result<Option<Snapshot>> {
        match self {
            Self::Cpu(engine) => Ok(engine.snapshot(index, parameter)),
            Self::Cuda(engine) => engine.snapshot(index, parameter),
        }
    }

    /// Goes on from snapshots, one for each parameter, or stays as it is.
    pub fn restore(&mut self, snapshots: Vec<Snapshot>, counters: Counters) -> Result<()> {
        match self {
            Self::Cpu(engine) => engine.restore(snapshots, counters),
            Self::Cuda(engine) => engine.restore(snapshots, counters),
        }
    }
}
