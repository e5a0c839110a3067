use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::{DType, Device, Tensor};

use super::address::{address_of, code};
use super::layout::Slot;
use crate::error::Result;
use crate::optim::fused::{Managed, Snapshot};
use crate::optim::rule::Rule;

/// The state of one parameter.
#[derive(Debug, Clone)]
pub struct State {
    /// The number of steps is that of the time when the tables were made; the device counts on.
    pub kept: Snapshot,
    /// The number of matrices that the rule factors.
    matrices: usize,
    /// The next tensors and the means of rows of these matrices, used within a step.
    scratch: Vec<Tensor>,
}

impl State {
    /// Copies saved state, or makes new state.
    pub fn new<R: Rule>(
        parameter: &Managed,
        saved: Option<&Snapshot>,
        device: &Device,
    ) -> Result<Self> {
        let kept = Snapshot::new(parameter, saved, device)?;
        let matrices = R::matrices(parameter.var.dims());
        let mut scratch = Vec::new();
        if matrices > 0 {
            for tensor in &kept.tensors {
                scratch.push(tensor.zeros_like()?);
            }
            scratch.push(Tensor::zeros(matrices, DType::F64, device)?);
        }
        Ok(Self {
            kept,
            matrices,
            scratch,
        })
    }

    pub fn slot(&self, parameter: &Managed, first_chunk: u64, stream: &CudaStream) -> Result<Slot> {
        let (tensors, scratch) = (&self.kept.tensors, &self.scratch);
        let address = |tensor| address_of(tensor, stream);
        let [rows, columns] = match parameter.var.dims() {
            [.., rows, columns] if self.matrices > 0 => [*rows, *columns],
            _ => [0; 2],
        };
        Ok(Slot {
            len: parameter.len as u64,
            state: [address(tensors.first())?, address(tensors.get(1))?],
            master: address(self.kept.master.as_ref())?,
            dtype: code(parameter.var.dtype())?,
            state_dtype: code(tensors.first().map_or(DType::F32, Tensor::dtype))?,
            first_chunk,
            matrices: self.matrices as u64,
            rows: rows as u64,
            columns: columns as u64,
            next: [address(scratch.first())?, address(scratch.get(1))?],
            means: address(scratch.get(2))?,
        })
    }

    /// Copies the state to host memory, because the device may be full.
    pub fn copied(&self) -> Result<Snapshot> {
        let copy = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
        let tensors = self.kept.tensors.iter().map(copy);
        Ok(Snapshot {
            step: self.kept.step,
            tensors: tensors.collect::<candle_core::Result<_>>()?,
            master: self.kept.master.as_ref().map(copy).transpose()?,
        })
    }
}
