use std::ops::Range;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::{CudaDevice, DType, Device, Error, Tensor};

use super::address::{address_of, code};
use super::host::Moments;
use super::layout::Slot;
use crate::error::Result;
use crate::optim::fused::{Managed, Snapshot};
use crate::optim::rule::Rule;

/// The state of a parameter.
#[derive(Debug, Clone)]
pub struct State {
    /// The number of steps is that of the time when the tables were made; the device counts on.
    pub kept: Snapshot,
    /// All tensors of `kept` if they are in host memory; it is then without them.
    pub on_host: Option<Arc<Moments>>,
    /// The next tensors and the means of rows of the matrices that the rule factors, used within a step.
    scratch: Vec<Tensor>,
}

impl State {
    /// Copies saved state, or makes new state.
    pub fn new<R: Rule>(
        parameter: &Managed,
        saved: Option<&Snapshot>,
        device: &CudaDevice,
    ) -> Result<Self> {
        let stream = device.cuda_stream();
        let device = &Device::Cuda(device.clone());
        let (mut on_host, mut kept) = (None, Snapshot::default());
        if parameter.on_host {
            on_host = Some(Arc::new(Moments::new(parameter, saved, &stream)?));
            kept.step = saved.map_or(0, |saved| saved.step);
        } else {
            kept = Snapshot::new(parameter, saved, device)?;
        }
        let matrices = R::matrices(parameter.var.dims());
        let mut scratch = Vec::new();
        if matrices > 0 {
            for tensor in kept.tensors.iter().take(parameter.by_rule().len()) {
                scratch.push(tensor.zeros_like()?);
            }
            scratch.push(Tensor::zeros(matrices, DType::F64, device)?);
        }
        Ok(Self {
            kept,
            on_host,
            scratch,
        })
    }

    /// The slot of a range of the parameter, of whose elements `before` are kept before it.
    pub fn slot<R: Rule>(
        &self,
        parameter: &Managed,
        (range, before, first_chunk): (&Range<usize>, usize, u64),
        stream: &CudaStream,
    ) -> Result<Slot> {
        let address = |tensor| address_of(tensor, stream);
        let place = |index| {
            let start = match &self.on_host {
                Some(moments) => moments.address(index),
                None => address(self.kept.tensors.get(index))?,
            };
            let held = parameter.kept.get(index).filter(|_| before > 0);
            Ok::<_, Error>(start + held.map_or(0, |held| held.bytes_of(before) as u64))
        };
        let by_rule = parameter.by_rule();
        let moment = |index| match index < by_rule.len() {
            true => place(index),
            false => Ok(0),
        };
        let matrices = R::matrices(parameter.var.dims());
        let [rows, columns] = match parameter.var.dims() {
            [.., rows, columns] if matrices > 0 => [*rows, *columns],
            _ => [0; 2],
        };
        Ok(Slot {
            first: range.start as u64,
            len: range.len() as u64,
            state: [moment(0)?, moment(1)?],
            master: place(by_rule.len())?,
            dtype: code(parameter.var.dtype())?,
            state_dtype: code(by_rule.first().map_or(DType::F32, |held| held.dtype()))?,
            first_chunk,
            matrices: matrices as u64,
            rows: rows as u64,
            columns: columns as u64,
            next: [
                address(self.scratch.first())?,
                address(self.scratch.get(1))?,
            ],
            means: address(self.scratch.get(2))?,
            stream: parameter.stream,
        })
    }
}
