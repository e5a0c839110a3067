//! Structs in the device's memory. Each has its counterpart in kernels/fused.cuh (`Task` in kernels/adafactor.cu), which asserts the
//! same sizes.

use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr};
use candle_core::cuda_backend::{CudaStorageSlice, cudarc::driver::CudaStream};
use candle_core::{CudaStorage, DType, Error, Result, Storage, Tensor};

use crate::optim::fused::Counters;

/// Elements per partial sum: as on the CPU, so that sums have the same order.
pub const CHUNK: usize = crate::optim::cpu::CHUNK;

pub const THREADS: usize = 256;

/// One parameter in all steps. The address of what is missing is 0.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Slot {
    pub len: u64,
    pub state: [u64; 2],
    pub master: u64,
    pub dtype: u32,
    pub state_dtype: u32,
    pub first_chunk: u64,
    pub matrices: u64,
    pub rows: u64,
    pub columns: u64,
    pub next: [u64; 2],
    pub means: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Chunk {
    pub parameter: u32,
    pub index: u32,
}

/// The work of a block of Adafactor's sums.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Task {
    pub parameter: u32,
    pub kind: u32,
    pub start: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Control {
    steps: u64,
    skipped: u64,
    streak: u64,
    has_norm: u64,
    scale: f64,
    norm: f64,
    factor: f64,
    is_skipped: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Coefficients {
    values: [f64; 6],
    step: u32,
    moves: u32,
}

/// The addresses of everything: the argument of every kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Arguments {
    pub frame: u64,
    pub slots: u64,
    pub chunks: u64,
    pub current: u64,
    pub next: u64,
    pub counts: u64,
    pub next_counts: u64,
    pub coefficients: u64,
    pub partials: u64,
    pub scale: u64,
    pub parameters: u64,
}

const _: () = assert!(size_of::<Slot>() == 96);
const _: () = assert!(size_of::<Chunk>() == 8);
const _: () = assert!(size_of::<Task>() == 16);
const _: () = assert!(size_of::<Control>() == 64);
const _: () = assert!(size_of::<Coefficients>() == 56);
const _: () = assert!(size_of::<Arguments>() == 88);

// SAFETY: plain numbers, laid out as `Slot` in kernels/fused.cuh.
unsafe impl DeviceRepr for Slot {}
// SAFETY: plain numbers, laid out as `Chunk` in kernels/fused.cuh.
unsafe impl DeviceRepr for Chunk {}
// SAFETY: plain numbers, laid out as `Task` in kernels/adafactor.cu.
unsafe impl DeviceRepr for Task {}
// SAFETY: plain numbers, laid out as `Control` in kernels/fused.cuh.
unsafe impl DeviceRepr for Control {}
// SAFETY: plain numbers, laid out as `Coefficients` in kernels/fused.cuh.
unsafe impl DeviceRepr for Coefficients {}

impl From<Counters> for Control {
    fn from(counters: Counters) -> Self {
        Self {
            steps: counters.steps,
            skipped: counters.skipped,
            streak: counters.streak,
            has_norm: counters.norm.is_some().into(),
            scale: counters.scale,
            norm: counters.norm.unwrap_or(0.),
            factor: 1.,
            is_skipped: 0,
        }
    }
}

impl From<Control> for Counters {
    fn from(control: Control) -> Self {
        Self {
            steps: control.steps,
            skipped: control.skipped,
            scale: control.scale,
            streak: control.streak,
            norm: (control.has_norm != 0).then_some(control.norm),
        }
    }
}

/// The number of a type in the kernels.
pub fn code(dtype: DType) -> Result<u32> {
    match dtype {
        DType::F32 => Ok(0),
        DType::F64 => Ok(1),
        DType::F16 => Ok(2),
        DType::BF16 => Ok(3),
        other => Err(Error::UnsupportedDTypeForOp(other, "fused-update").bt()),
    }
}

/// Evaluates `$do` for values of any type.
macro_rules! each {
    ($slice:expr, $dtype:expr, $values:ident => $do:expr) => {
        match $slice {
            CudaStorageSlice::F32($values) => Ok($do),
            CudaStorageSlice::F64($values) => Ok($do),
            CudaStorageSlice::F16($values) => Ok($do),
            CudaStorageSlice::BF16($values) => Ok($do),
            _ => Err(Error::UnsupportedDTypeForOp($dtype, "fused-update").bt()),
        }
    };
}

/// The address of a storage, for reading. The stream waits for what other streams write there.
pub fn address(storage: &CudaStorage, dtype: DType, stream: &CudaStream) -> Result<u64> {
    each!(&storage.slice, dtype, values => values.device_ptr(stream).0)
}

/// The address of a storage, for writing.
pub fn address_mut(storage: &mut CudaStorage, dtype: DType, stream: &CudaStream) -> Result<u64> {
    each!(&mut storage.slice, dtype, values => values.device_ptr_mut(stream).0)
}

/// The address of an engine's own tensor.
pub fn address_of(tensor: &Tensor, stream: &CudaStream) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => {
            let start = layout.start_offset() * tensor.dtype().size_in_bytes();
            Ok(address(storage, tensor.dtype(), stream)? + start as u64)
        }
        _ => Err(misplaced()),
    }
}

/// An error that the checks before an update rule out.
pub fn misplaced() -> Error {
    Error::Msg("the type or device of a gradient or parameter has changed".to_owned()).bt()
}
