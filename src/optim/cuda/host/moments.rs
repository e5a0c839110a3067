use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::{DType, Device, Result as CandleResult, Tensor};

use super::pinned::{ALIGNMENT, Pinned};
use crate::error::Result;
use crate::optim::cpu::take;
use crate::optim::fused::{Managed, Snapshot, kept_tensor, misplaced};

/// The moments and master weights of one parameter in host memory, one after the other.
#[derive(Debug)]
pub struct Moments {
    memory: Pinned,
    /// As in [`Managed::kept`].
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    start: usize,
    bytes: usize,
    dtype: DType,
    dims: Vec<usize>,
}

impl Moments {
    /// Copies saved tensors, or makes new ones.
    pub fn new(
        parameter: &Managed,
        saved: Option<&Snapshot>,
        stream: &Arc<CudaStream>,
    ) -> Result<Self> {
        let (mut parts, mut end) = (Vec::new(), 0_usize);
        for held in &parameter.kept {
            let (dims, dtype) = (held.dims(), held.dtype());
            let bytes = dims.iter().product::<usize>() * dtype.size_in_bytes();
            parts.push(Part {
                start: end,
                bytes,
                dtype,
                dims,
            });
            end = (end + bytes).next_multiple_of(ALIGNMENT);
        }
        let mut moments = Self {
            memory: Pinned::zeros(stream, end)?,
            parts,
        };
        moments.copy(parameter, saved)?;
        Ok(moments)
    }

    fn copy(&mut self, parameter: &Managed, saved: Option<&Snapshot>) -> Result<()> {
        // SAFETY: nothing has been launched with the memory's address, which `new` has not returned yet.
        let memory = unsafe { self.memory.write() };
        for (index, part) in self.parts.iter().enumerate() {
            if saved.is_none() && index < parameter.by_rule().len() {
                // It is 0 already.
                continue;
            }
            let tensor = kept_tensor(parameter, index, saved, &Device::Cpu)?;
            let into = memory.get_mut(part.start..part.start + part.bytes);
            tensor.write_bytes(&mut into.ok_or_else(misplaced)?)?;
        }
        Ok(())
    }

    /// Where kernels find a tensor; 0 if it is not kept.
    pub fn address(&self, index: usize) -> u64 {
        let part = self.parts.get(index);
        part.map_or(0, |part| self.memory.address() + part.start as u64)
    }

    /// The bytes of each tensor.
    ///
    /// # Safety
    /// No unfinished work on the device uses them.
    pub unsafe fn write(&mut self) -> impl Iterator<Item = &mut [u8]> {
        // SAFETY: the same contract.
        let mut rest = unsafe { self.memory.write() };
        let mut end = 0;
        self.parts.iter().map(move |part| {
            take(&mut rest, part.start - end);
            end = part.start + part.bytes;
            take(&mut rest, part.bytes)
        })
    }

    /// Waits for the device, and copies the tensors.
    pub fn tensors(&self) -> Result<Vec<Tensor>> {
        // SAFETY: an engine launches work only while it is borrowed mutably, and its moments are borrowed here.
        let memory = unsafe { self.memory.read() }?;
        let tensors = self.parts.iter().map(|part| {
            let bytes = memory.get(part.start..part.start + part.bytes);
            let bytes = bytes.ok_or_else(misplaced)?;
            Tensor::from_raw_buffer(bytes, part.dtype, &part.dims, &Device::Cpu)
        });
        Ok(tensors.collect::<CandleResult<_>>()?)
    }
}
