//! The state of a parameter, on the device or in page-locked host memory, which kernels read and write in place over the bus, in the one
//! launch that changes everything. The host does not wait. For AdamW with f32 moments the bus carries 8 bytes for an element in each
//! direction, 12 with master weights, both directions at once.

use std::ops::Range;
use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::cuda_backend::cudarc::driver::result::stream;
use candle_core::cuda_backend::cudarc::driver::sys::cuMemHostGetDevicePointer_v2;
use candle_core::{
    CudaDevice, DType, Device, Error as CandleError, Result as CandleResult, Tensor,
};

use super::layout::{Slot, address_of, code};
use crate::error::{Error, Remedy, Result};
use crate::memory::{PageLocked, while_dropping};
use crate::optim::fused::{Held, Managed, Snapshot, kept_tensor, misplaced};

/// The state of a parameter.
#[derive(Debug, Clone)]
pub struct State {
    /// The number of steps is that of the time when the tables were made; the device counts on.
    pub kept: Snapshot,
    /// All tensors of `kept` if they are in host memory; it is then without them.
    pub on_host: Option<Arc<Moments>>,
}

impl State {
    /// Copies saved state, or makes new state.
    pub fn new(parameter: &Managed, saved: Option<&Snapshot>, device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let device = &Device::Cuda(device.clone());
        let (mut on_host, mut kept) = (None, Snapshot::default());
        if parameter.on_host {
            on_host = Some(Arc::new(Moments::new(parameter, saved, &stream)?));
            kept.step = saved.map_or(0, |saved| saved.step);
        } else {
            kept = Snapshot::new(parameter, saved, device)?;
        }
        Ok(Self { kept, on_host })
    }

    /// The slot of a range of the parameter, of whose elements `before` are kept before it.
    pub fn slot(
        &self,
        parameter: &Managed,
        range: &Range<usize>,
        before: usize,
        stream: &CudaStream,
    ) -> Result<Slot> {
        let place = |index| {
            let start = match &self.on_host {
                Some(moments) => moments.address(index),
                None => address_of(self.kept.tensors.get(index), stream)?,
            };
            let held = parameter.kept.get(index).filter(|_| before > 0);
            Ok::<_, CandleError>(start + held.map_or(0, |held| held.bytes_of(before) as u64))
        };
        let by_rule = parameter.by_rule();
        let moment = |index| match index < by_rule.len() {
            true => place(index),
            false => Ok(0),
        };
        Ok(Slot {
            state: [moment(0)?, moment(1)?],
            master: place(by_rule.len())?,
            state_dtype: code(by_rule.first().map_or(DType::F32, |held| held.dtype()))?,
            stream: parameter.stream,
            ..Slot::of(parameter, range)?
        })
    }
}

/// Of the first byte of each tensor: what kernels load at once, and a line of the GPU's cache.
const ALIGNMENT: usize = 128;

/// The moments and master weights of one parameter, one after the other.
#[derive(Debug)]
pub struct Moments {
    memory: PageLocked,
    /// Where kernels find the memory.
    address: u64,
    stream: Arc<CudaStream>,
    /// Their first bytes, and the tensors of [`Managed::kept`].
    parts: Vec<(usize, Held)>,
}

impl Moments {
    /// Copies saved tensors, or makes new ones.
    pub fn new(
        parameter: &Managed,
        saved: Option<&Snapshot>,
        stream: &Arc<CudaStream>,
    ) -> Result<Self> {
        let (mut parts, mut end) = (Vec::new(), 0);
        for held in &parameter.kept {
            parts.push((end, held.clone()));
            end = (end + held.bytes() as usize).next_multiple_of(ALIGNMENT);
        }
        let mut moments = Self {
            memory: PageLocked::zeros(stream.context(), end).map_err(refused)?,
            address: 0,
            stream: Arc::clone(stream),
            parts,
        };
        let start = moments.memory.start().cast();
        // SAFETY: the driver writes one address to where the pointer leads; the memory is mapped for the device and lives.
        let status = unsafe { cuMemHostGetDevicePointer_v2(&mut moments.address, start, 0) };
        status.result().w()?;
        // SAFETY: no work on the device has the memory's address yet.
        let memory = unsafe { moments.memory.write() };
        for (index, (start, held)) in moments.parts.iter().enumerate() {
            // New moments are 0 already.
            if saved.is_some() || index >= parameter.by_rule().len() {
                let tensor = kept_tensor(parameter, index, saved, &Device::Cpu)?;
                let into = memory.get_mut(*start..start + held.bytes() as usize);
                tensor.write_bytes(&mut into.ok_or_else(misplaced)?)?;
            }
        }
        Ok(moments)
    }

    /// Where kernels find a tensor; 0 if it is not kept.
    pub fn address(&self, index: usize) -> u64 {
        let part = self.parts.get(index);
        part.map_or(0, |(start, _)| self.address + *start as u64)
    }

    /// Waits for the device, and copies the tensors.
    pub fn tensors(&self) -> Result<Vec<Tensor>> {
        self.stream.synchronize().w()?;
        // SAFETY: only work on this stream writes to the memory, and it is finished. An engine launches more only while it is borrowed
        // mutably, and its moments are borrowed here.
        let memory = unsafe { self.memory.read() };
        let tensors = self.parts.iter().map(|(start, held)| {
            let bytes = memory.get(*start..start + held.bytes() as usize);
            let bytes = bytes.ok_or_else(misplaced)?;
            Tensor::from_raw_buffer(bytes, held.dtype(), &held.dims(), &Device::Cpu)
        });
        Ok(tensors.collect::<CandleResult<_>>()?)
    }
}

impl Drop for Moments {
    /// Waits for the stream, so that no kernel finds the memory gone.
    fn drop(&mut self) {
        while_dropping(self.stream.context(), || {
            // SAFETY: the stream lives as long as `self`.
            unsafe { stream::synchronize(self.stream.cu_stream()) }
        });
    }
}

fn refused(error: Error) -> Error {
    match error {
        Error::ResourceExhausted(mut exhausted) => {
            let advice = "a smaller fraction in `moments_on_host`, or more free memory on the host";
            exhausted.remedies.push(Remedy::new(advice, None));
            Error::ResourceExhausted(exhausted)
        }
        error => error,
    }
}
