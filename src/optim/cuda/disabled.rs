use std::convert::Infallible;

use candle_core::{CudaDevice, Error, Tensor};

use crate::error::Result;
use crate::optim::Committed;
use crate::optim::fused::{Adjustment, Counters, Managed, Snapshot, Update};
use crate::optim::rule::Rule;

/// A program may turn on candle's CUDA backend by itself; then there are no fused passes for it.
pub const IS_BUILT: bool = false;

/// There is none in this build.
#[derive(Debug)]
pub struct Engine(Infallible);

impl Engine {
    pub fn new<R: Rule>(_: &CudaDevice, _: &R, _: &[Managed], _: &Adjustment) -> Result<Self> {
        Err(Error::NotCompiledWithCudaSupport.into())
    }

    pub fn commit<R: Rule>(&mut self, _: &Update<'_, R>) -> Result<Committed> {
        match self.0 {}
    }

    pub fn scale(&self, _: &Tensor) -> Result<Tensor> {
        match self.0 {}
    }

    pub fn counters(&self) -> Result<Counters> {
        match self.0 {}
    }

    pub fn snapshot(&self, _: usize, _: &Managed) -> Result<Option<Snapshot>> {
        match self.0 {}
    }

    pub fn restore(&mut self, _: Vec<Snapshot>, _: Counters) -> Result<()> {
        match self.0 {}
    }
}
