use std::sync::Arc;

use candle_core::Tensor;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use parking_lot::Mutex;

use super::communicator::Communicator;
use super::exchange::{Exchange, Operation};
use crate::distributed::collectives::Collectives;
use crate::distributed::watch::Watch;
use crate::error::{Error, Result};

/// All in one call: NCCL cuts it itself, and each call passes all ranks of a ring.
const BUCKET: usize = usize::MAX;

/// NCCL between buffers on GPUs. Its work runs on the tensors' own streams, in order with their kernels.
#[derive(Debug)]
pub(super) struct Engine {
    communicator: Communicator,
    /// The streams with work since the last [`finish`](Collectives::finish).
    streams: Mutex<Vec<Arc<CudaStream>>>,
}

impl Engine {
    pub(super) fn new(communicator: Communicator) -> Self {
        Self {
            communicator,
            streams: Mutex::default(),
        }
    }

    fn exchange(&self, buffer: &Tensor, operation: Operation, watch: &Watch) -> Result<()> {
        self.communicator.run(operation.name(), watch, |turn| {
            let (rank, size) = self.communicator.ranks();
            let exchange = Exchange {
                turn,
                operation,
                rank,
                size,
                context: &self.communicator.context,
                streams: &self.streams,
            };
            buffer.inplace_op1(&exchange).map_err(Error::from)
        })
    }
}

impl Collectives for Engine {
    fn name(&self) -> String {
        self.communicator.name()
    }

    fn bucket(&self) -> usize {
        BUCKET
    }

    fn reduce_scatter(&self, bucket: &Tensor, watch: &Watch) -> Result<()> {
        self.exchange(bucket, Operation::ReduceScatter, watch)
    }

    fn all_gather(&self, bucket: &Tensor, watch: &Watch) -> Result<()> {
        self.exchange(bucket, Operation::AllGather, watch)
    }

    fn broadcast(&self, buffer: &Tensor, from: usize, watch: &Watch) -> Result<()> {
        self.exchange(buffer, Operation::Broadcast { from }, watch)
    }

    fn finish(&self, watch: &Watch) -> Result<()> {
        let streams = std::mem::take(&mut *self.streams.lock());
        self.communicator.run("waiting for the GPU", watch, |turn| {
            for stream in &streams {
                let end = stream.record_event(None).w()?;
                turn.wait(|| Ok(end.try_is_complete().w()?))?;
            }
            Ok(())
        })
    }
}
