use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use candle_core::{CudaDevice, DType, Device, Tensor};

use super::layout::{
    Arguments, CHUNK, Chunk, Coefficients, Control, Slot, address_of, code, misplaced,
};
use crate::error::Result;
use crate::optim::fused::{Counters, Managed, Snapshot};

/// What never changes about a parameter.
#[derive(Debug, Clone)]
pub struct Place {
    pub len: usize,
    pub dtype: DType,
    pub first_chunk: usize,
    /// The number of matrices, and the rows and columns of each; zeros for fewer axes.
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

/// The engine's own memory on the device, besides the state of parameters. Only the last launch of a step changes the slots, the current
/// numbers, the counts and the scale.
#[derive(Debug)]
pub struct Tables {
    slots: CudaSlice<Slot>,
    pub chunks: CudaSlice<Chunk>,
    pub current: CudaSlice<Control>,
    next: CudaSlice<Control>,
    /// How often each parameter was updated.
    pub counts: CudaSlice<u64>,
    next_counts: CudaSlice<u64>,
    coefficients: CudaSlice<Coefficients>,
    partials: CudaSlice<f64>,
    /// The loss scale: f64, so that the same number multiplies and divides in each type.
    pub scale: Tensor,
}

impl Tables {
    pub fn new(
        device: &CudaDevice,
        places: &[Place],
        states: &[State],
        mut counts: Vec<u64>,
        counters: Counters,
    ) -> Result<Self> {
        let stream = device.cuda_stream();
        let slots = states.iter().zip(places);
        let slots = slots.map(|(state, place)| slot(state, place, &stream));
        let mut slots = slots.collect::<Result<Vec<_>>>()?;
        // No allocation is empty, also where all parameters are frozen.
        let len = places.len().max(1);
        slots.resize(len, Slot::default());
        counts.resize(len, 0);
        let chunks = chunks(places);
        let control = [Control::from(counters)];
        Ok(Self {
            slots: device.clone_htod(&slots)?,
            current: device.clone_htod(&control)?,
            next: device.clone_htod(&control)?,
            counts: device.clone_htod(&counts)?,
            next_counts: device.alloc_zeros(len)?,
            coefficients: device.clone_htod(&vec![Coefficients::default(); len])?,
            partials: device.alloc_zeros(chunks.len())?,
            chunks: device.clone_htod(&chunks)?,
            scale: Tensor::new(counters.scale, &Device::Cuda(device.clone()))?,
        })
    }

    pub fn arguments(
        &self,
        frame: &CudaSlice<u64>,
        parameters: usize,
        stream: &CudaStream,
    ) -> Result<Arguments> {
        Ok(Arguments {
            frame: start(frame, stream),
            slots: start(&self.slots, stream),
            chunks: start(&self.chunks, stream),
            current: start(&self.current, stream),
            next: start(&self.next, stream),
            counts: start(&self.counts, stream),
            next_counts: start(&self.next_counts, stream),
            coefficients: start(&self.coefficients, stream),
            partials: start(&self.partials, stream),
            scale: address_of(&self.scale, stream)?,
            parameters: u64::try_from(parameters).map_err(|_| misplaced())?,
        })
    }
}

fn slot(state: &State, place: &Place, stream: &CudaStream) -> Result<Slot> {
    let address =
        |tensor: Option<&Tensor>| tensor.map_or(Ok(0), |tensor| address_of(tensor, stream));
    let [matrices, rows, columns] = match state.scratch.is_empty() {
        true => [0; 3],
        false => place.matrices,
    };
    let (tensors, scratch) = (&state.tensors, &state.scratch);
    Ok(Slot {
        len: place.len as u64,
        state: [address(tensors.first())?, address(tensors.get(1))?],
        master: address(state.master.as_ref())?,
        dtype: code(place.dtype)?,
        state_dtype: code(tensors.first().map_or(DType::F32, Tensor::dtype))?,
        first_chunk: place.first_chunk as u64,
        matrices: matrices as u64,
        rows: rows as u64,
        columns: columns as u64,
        next: [address(scratch.first())?, address(scratch.get(1))?],
        means: address(scratch.get(2))?,
    })
}

/// The work of each block. There is at least one, since the last launch also makes the next numbers current.
fn chunks(places: &[Place]) -> Vec<Chunk> {
    let chunks = (0..).zip(places).flat_map(|(parameter, place)| {
        (0..place.chunks() as u32).map(move |index| Chunk { parameter, index })
    });
    let mut chunks: Vec<_> = chunks.collect();
    if chunks.is_empty() {
        chunks.push(Chunk::default());
    }
    chunks
}

/// The address of an engine's own memory.
pub fn start<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> u64 {
    slice.device_ptr(stream).0
}

/// The state of one parameter.
#[derive(Debug, Clone)]
pub struct State {
    pub tensors: Vec<Tensor>,
    pub master: Option<Tensor>,
    /// For a matrix of Adafactor: its next tensors, and the means of its rows. Of use within a step only.
    pub scratch: Vec<Tensor>,
}

impl State {
    /// Saved state, or zeros.
    pub fn new(
        parameter: &Managed,
        saved: Option<&Snapshot>,
        device: &Device,
        is_factored: bool,
    ) -> Result<Self> {
        let own = |tensor: &Tensor| tensor.force_contiguous()?.to_device(device);
        let var = parameter.var.as_detached_tensor();
        let (tensors, master) = match saved {
            Some(saved) => {
                let tensors = saved.tensors.iter().map(own);
                let tensors = tensors.collect::<candle_core::Result<_>>()?;
                (tensors, saved.master.as_ref().map(own))
            }
            None => {
                let master = parameter.has_master.then(|| var.to_dtype(DType::F32));
                (zeros(parameter, device)?, master)
            }
        };
        Ok(Self {
            tensors,
            master: master.transpose()?,
            scratch: match parameter.var.dims() {
                [batches @ .., _, _] if is_factored => {
                    let mut scratch = zeros(parameter, device)?;
                    scratch.push(Tensor::zeros(batches, DType::F64, device)?);
                    scratch
                }
                _ => Vec::new(),
            },
        })
    }
}

fn zeros(parameter: &Managed, device: &Device) -> Result<Vec<Tensor>> {
    let kept = parameter.kept.iter();
    let zeros = kept.map(|(kept, dtype)| Tensor::zeros(kept.dims.as_slice(), *dtype, device));
    Ok(zeros.collect::<candle_core::Result<_>>()?)
}
