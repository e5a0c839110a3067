use candle_core::{Device, Tensor};

use super::engine::Engine;
use crate::distributed::collectives::Collectives;
use crate::distributed::watch::Watch;
use crate::error::Result;

/// MPI between buffers of devices, by way of host memory: for GPUs without NCCL, and several ranks on one GPU.
#[derive(Debug)]
pub(super) struct Staged(pub(super) Engine);

impl Staged {
    /// Runs `call` on a copy in host memory, and copies the result back.
    fn stage(buffer: &Tensor, call: impl FnOnce(&Tensor) -> Result<()>) -> Result<()> {
        let host = buffer.to_device(&Device::Cpu)?.flatten_all()?;
        call(&host)?;
        let back = host.reshape(buffer.shape())?.to_device(buffer.device())?;
        match buffer.rank() {
            0 => buffer.reshape(1)?.slice_set(&back.reshape(1)?, 0, 0)?,
            _ => buffer.slice_set(&back, 0, 0)?,
        }
        Ok(())
    }
}

impl Collectives for Staged {
    fn name(&self) -> String {
        format!("{}, by way of host memory", self.0.name())
    }

    fn bucket(&self) -> usize {
        self.0.bucket()
    }

    fn reduce_scatter(&self, bucket: &Tensor, watch: &Watch) -> Result<()> {
        Self::stage(bucket, |host| self.0.reduce_scatter(host, watch))
    }

    fn all_reduce(&self, bucket: &Tensor, factor: f64, watch: &Watch) -> Result<()> {
        Self::stage(bucket, |host| self.0.all_reduce(host, factor, watch))
    }

    fn all_gather(&self, bucket: &Tensor, watch: &Watch) -> Result<()> {
        Self::stage(bucket, |host| self.0.all_gather(host, watch))
    }

    fn broadcast(&self, buffer: &Tensor, from: usize, watch: &Watch) -> Result<()> {
        Self::stage(buffer, |host| self.0.broadcast(host, from, watch))
    }

    fn finish(&self, watch: &Watch) -> Result<()> {
        self.0.finish(watch)
    }
}
