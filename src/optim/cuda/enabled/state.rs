use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use candle_core::{CudaDevice, DType, Device, Tensor};

use super::layout::{CHUNK, Control, Slot, address_of, code};
use crate::error::Result;
use crate::optim::fused::{Counters, Managed, Snapshot};

/// What is kept for one parameter.
#[derive(Debug, Clone)]
pub struct State {
    pub tensors: Vec<Tensor>,
    pub master: Option<Tensor>,
    /// What Adafactor's tensors of a matrix will be, and the means of their rows: of use within a step only.
    scratch: Vec<Tensor>,
}

impl State {
    pub fn new(parameter: &Managed, device: &Device, is_factored: bool) -> Result<Self> {
        let zeros = || {
            let kept = parameter.kept.iter();
            kept.map(|(kept, dtype)| Tensor::zeros(kept.dims.as_slice(), *dtype, device))
        };
        let mut scratch = Vec::new();
        if let (true, [batches @ .., _, _]) = (is_factored, parameter.var.dims()) {
            scratch = zeros().collect::<candle_core::Result<_>>()?;
            scratch.push(Tensor::zeros(batches, DType::F64, device)?);
        }
        let master = match parameter.has_master {
            true => Some(parameter.var.as_detached_tensor().to_dtype(DType::F32)?),
            false => None,
        };
        Ok(Self {
            tensors: zeros().collect::<candle_core::Result<_>>()?,
            master,
            scratch,
        })
    }

    /// The same with other numbers, which lie on the host.
    fn restored(&self, snapshot: &Snapshot, device: &Device) -> Result<Self> {
        let own = |tensor: &Tensor| tensor.force_contiguous()?.to_device(device);
        let tensors = snapshot.tensors.iter().map(own);
        Ok(Self {
            tensors: tensors.collect::<candle_core::Result<_>>()?,
            master: snapshot.master.as_ref().map(own).transpose()?,
            scratch: self.scratch.clone(),
        })
    }

    fn slot(&self, parameter: &Place, stream: &CudaStream) -> Result<Slot> {
        let address =
            |tensor: Option<&Tensor>| tensor.map_or(Ok(0), |tensor| address_of(tensor, stream));
        let [matrices, rows, columns] = match self.scratch.is_empty() {
            true => [0; 3],
            false => parameter.matrices,
        };
        let state_dtype = self.tensors.first().map_or(DType::F32, Tensor::dtype);
        Ok(Slot {
            len: parameter.len as u64,
            state: [
                address(self.tensors.first())?,
                address(self.tensors.get(1))?,
            ],
            master: address(self.master.as_ref())?,
            dtype: code(parameter.dtype)?,
            state_dtype: code(state_dtype)?,
            first_chunk: parameter.first_chunk as u64,
            matrices: matrices as u64,
            rows: rows as u64,
            columns: columns as u64,
            next: [
                address(self.scratch.first())?,
                address(self.scratch.get(1))?,
            ],
            means: address(self.scratch.get(2))?,
        })
    }
}

/// What never changes about a parameter.
#[derive(Debug, Clone)]
pub struct Place {
    pub len: usize,
    pub dtype: DType,
    pub first_chunk: usize,
    /// Their number, and the rows and columns of each; zeros where it has fewer axes.
    pub matrices: [usize; 3],
}

impl Place {
    pub fn all(parameters: &[Managed]) -> Vec<Self> {
        let mut next = 0;
        let places = parameters.iter().map(|parameter| {
            let first_chunk = next;
            next += parameter.len.div_ceil(CHUNK);
            Self {
                len: parameter.len,
                dtype: parameter.var.dtype(),
                first_chunk,
                matrices: match parameter.var.dims() {
                    [batches @ .., rows, columns] => [batches.iter().product(), *rows, *columns],
                    _ => [0; 3],
                },
            }
        });
        places.collect()
    }

    pub fn chunks(&self) -> usize {
        self.len.div_ceil(CHUNK)
    }
}

/// All that is kept from step to step; only the last launch of a step changes it.
#[derive(Debug)]
pub struct Kept {
    pub states: Vec<State>,
    pub slots: CudaSlice<Slot>,
    pub current: CudaSlice<Control>,
    /// How often each parameter was moved.
    pub counts: CudaSlice<u64>,
    /// By what a loss is multiplied: f64, so that what is multiplied and divided by is the same in each type.
    pub scale: Tensor,
}

impl Kept {
    pub fn new(
        device: &CudaDevice,
        places: &[Place],
        states: Vec<State>,
        counts: &[u64],
        counters: Counters,
    ) -> Result<Self> {
        let stream = device.cuda_stream();
        let slots = states.iter().zip(places);
        let slots = slots.map(|(state, place)| state.slot(place, &stream));
        Ok(Self {
            slots: device.clone_htod(&slots.collect::<Result<Vec<_>>>()?)?,
            current: device.clone_htod(&[Control::from(counters)])?,
            counts: device.clone_htod(counts)?,
            scale: Tensor::new(counters.scale, &Device::Cuda(device.clone()))?,
            states,
        })
    }

    /// What it would be with other numbers.
    pub fn restored(
        &self,
        device: &CudaDevice,
        places: &[Place],
        snapshots: &[Snapshot],
        counters: Counters,
    ) -> Result<Self> {
        let on = Device::Cuda(device.clone());
        let states = self.states.iter().zip(snapshots);
        let states = states.map(|(state, snapshot)| state.restored(snapshot, &on));
        let counts: Vec<_> = snapshots.iter().map(|snapshot| snapshot.step).collect();
        let states = states.collect::<Result<Vec<_>>>()?;
        Self::new(device, places, states, &counts, counters)
    }
}

/// Where an engine's own memory begins.
pub fn start<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> u64 {
    slice.device_ptr(stream).0
}
