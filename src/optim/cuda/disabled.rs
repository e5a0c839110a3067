use std::convert::Infallible;

use candle_core::{CudaDevice, Error, Tensor};

use crate::error::Result;
use crate::optim::Committed;
use crate::optim::fused::{Adjustment, Counters, Managed, Origin, Snapshot, Update};
use crate::optim::rule::Rule;

/// A program may enable candle's CUDA backend by itself; there are no fused passes for it then.
pub const IS_BUILT: bool = false;

/// This build has no such engine.
#[derive(Debug)]
pub struct Engine(Infallible);

impl Engine {
    pub fn new<R: Rule>(_: &CudaDevice, _: &[Managed], _: &Adjustment) -> Result<Self> {
        Err(Error::NotCompiledWithCudaSupport.into())
    }

    pub fn set_up<R: Rule>(
        &mut self,
        _: &[Managed],
        _: Vec<Origin>,
        _: Option<Counters>,
        _: &Adjustment,
    ) -> Result<()> {
        match self.0 {}
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

    pub fn snapshot(&self, _: usize) -> Result<Option<Snapshot>> {
        match self.0 {}
    }
}
