//! Structs in the device's memory, which are sent as bytes, with their counterparts in kernels/fused.cuh. The address of what is missing is 0.

use std::cell::Cell;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use candle_core::{
    CpuStorage, CudaStorage, DType, Error, InplaceOp2, Layout, Result, Storage, Tensor,
};

use crate::optim::cpu::CHUNK;
use crate::optim::fused::{Halves, Managed, Progress, Setup, misplaced};
use crate::optim::rule::Rule;

/// Numbers that all parameters share in one step.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Header {
    hyper: [f64; 8],
    clip_norm: f64,
    bound: f64,
    growth: f64,
    backoff: f64,
    interval: u64,
    flags: u64,
    squares: f64,
}

/// Numbers and addresses of one piece of a parameter that may change from step to step.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct Entry {
    pub parameter: u64,
    pub gradient: u64,
    pub gradient_dtype: u32,
    /// The number of axes of a gradient that is not contiguous, described in the table of axes; otherwise 0.
    pub rank: u32,
    pub learning_rate: f64,
    pub weight_decay: f64,
}

/// Numbers and addresses of one piece of a parameter that stay the same; zeros for a frozen one.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub struct Slot {
    pub first: u64,
    pub len: u64,
    pub state: [u64; 2],
    pub master: u64,
    pub dtype: u32,
    pub state_dtype: u32,
    pub first_chunk: u64,
    pub stream: u64,
}

/// The work of one block: a chunk of a piece.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub struct Task {
    /// The piece's index.
    pub piece: u64,
    /// The chunk's index in the piece.
    pub chunk: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
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

/// The argument of every kernel: the header, and the addresses of all tables.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Arguments {
    pub header: Header,
    pub entries: u64,
    pub axes: u64,
    pub slots: u64,
    pub chunks: u64,
    pub control: u64,
    pub counts: u64,
    pub coefficients: u64,
    pub partials: u64,
    pub scale: u64,
    pub parameters: u64,
}

/// Size of the device's `Coefficients` in words of 8 bytes. The host does not read them.
pub const COEFFICIENTS: usize = 8;

const _: () = assert!(size_of::<Entry>() == 40);
const _: () = assert!(size_of::<Slot>() == 64);
const _: () = assert!(size_of::<Task>() == 16);
const _: () = assert!(size_of::<Control>() == 64);
const _: () = assert!(size_of::<Arguments>() == 200);

impl Slot {
    /// A range of the parameter, without state.
    pub fn of(parameter: &Managed, range: &Range<usize>) -> Result<Self> {
        Ok(Self {
            first: range.start as u64,
            len: range.len() as u64,
            dtype: code(parameter.var.dtype())?,
            ..Self::default()
        })
    }

    /// The chunks of all pieces, to which their slots refer from here on. There is at least one slot, for a shard of nothing, whose
    /// steps are counted all the same; and at least one chunk, since the last launch also makes the next control current.
    pub fn cut(slots: &mut Vec<Self>) -> Vec<Task> {
        let mut chunks = Vec::new();
        for (piece, slot) in (0..).zip(&mut *slots) {
            slot.first_chunk = chunks.len() as u64;
            chunks.extend((0..slot.chunks()).map(|chunk| Task { piece, chunk }));
        }
        if slots.is_empty() {
            slots.push(Self::default());
        }
        if chunks.is_empty() {
            chunks.push(Task::default());
        }
        chunks
    }

    pub fn chunks(&self) -> u64 {
        self.len.div_ceil(CHUNK as u64)
    }
}

impl Header {
    /// `squares` replaces the survey's sum.
    pub fn new<R: Rule>(setup: &Setup<R>, squares: Option<f64>) -> Self {
        let adjustment = &setup.adjustment;
        let scale = adjustment.loss_scale;
        // In the order of the kernels' `Flag`s.
        let flags = [
            adjustment.needs_survey(),
            adjustment.clip_norm.is_some(),
            scale.is_some(),
            setup.halves == Halves::Stochastic,
            squares.is_some(),
        ];
        let flags = (0u32..).zip(flags);
        let flags = flags.map(|(bit, flag)| u64::from(flag) << bit);
        Self {
            hyper: setup.rule.numbers(),
            clip_norm: adjustment.clip_norm.unwrap_or(0.),
            bound: adjustment.bound(),
            growth: scale.map_or(1., |scale| scale.growth),
            backoff: scale.map_or(1., |scale| scale.backoff),
            interval: scale.map_or(1, |scale| scale.interval),
            flags: flags.sum(),
            squares: squares.unwrap_or(0.),
        }
    }
}

impl From<Progress> for Control {
    fn from(progress: Progress) -> Self {
        Self {
            steps: progress.steps,
            skipped: progress.skipped,
            streak: progress.streak,
            has_norm: progress.gradient_norm.is_some().into(),
            scale: progress.scale(),
            norm: progress.gradient_norm.unwrap_or(0.),
            factor: 1.,
            is_skipped: 0,
        }
    }
}

impl Control {
    /// Converts to the host's counters. `new` shows whether there is a loss scale.
    pub fn progress(&self, new: Progress) -> Progress {
        Progress {
            steps: self.steps,
            skipped: self.skipped,
            loss_scale: new.loss_scale.map(|_| self.scale),
            streak: self.streak,
            gradient_norm: (self.has_norm != 0).then_some(self.norm),
        }
    }
}

/// Returns the number of a type in the kernels.
pub fn code(dtype: DType) -> Result<u32> {
    match dtype {
        DType::F32 => Ok(0),
        DType::F64 => Ok(1),
        DType::F16 => Ok(2),
        DType::BF16 => Ok(3),
        // Moments of 8 bits.
        DType::U8 => Ok(4),
        other => Err(Error::UnsupportedDTypeForOp(other, "fused-update").bt()),
    }
}

/// Evaluates `$do` for values of each type that [`code`] has.
macro_rules! each {
    ($slice:expr, $values:ident => $do:expr) => {
        match $slice {
            CudaStorageSlice::F32($values) => Ok($do),
            CudaStorageSlice::F64($values) => Ok($do),
            CudaStorageSlice::F16($values) => Ok($do),
            CudaStorageSlice::BF16($values) => Ok($do),
            CudaStorageSlice::U8($values) => Ok($do),
            _ => Err(misplaced()),
        }
    };
}

/// Returns the address of a tensor for reading. The stream waits for writes by other streams.
fn address(storage: &CudaStorage, layout: &Layout, stream: &CudaStream) -> Result<u64> {
    let address: Result<u64> = each!(&storage.slice, values => values.device_ptr(stream).0);
    Ok(address? + offset(layout, storage.dtype()))
}

fn offset(layout: &Layout, dtype: DType) -> u64 {
    (layout.start_offset() * dtype.size_in_bytes()) as u64
}

/// Returns the address of a tensor of the engine; 0 for none.
pub fn address_of(tensor: Option<&Tensor>, stream: &CudaStream) -> Result<u64> {
    let Some(tensor) = tensor else {
        return Ok(0);
    };
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => address(storage, layout, stream),
        _ => Err(misplaced()),
    }
}

/// Returns the addresses of a parameter and its gradient, after candle's own checks.
pub fn locate(parameter: &Managed, gradient: &Tensor) -> Result<(u64, u64)> {
    let locate = Locate(Cell::new(None));
    parameter.handle.inplace_op2(gradient, &locate)?;
    locate.0.get().ok_or_else(misplaced)
}

/// An operation that only stores the addresses of its operands.
struct Locate(Cell<Option<(u64, u64)>>);

impl InplaceOp2 for Locate {
    fn name(&self) -> &'static str {
        "fused-update"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
        Err(misplaced())
    }

    fn cuda_fwd(
        &self,
        parameter: &mut CudaStorage,
        parameter_layout: &Layout,
        gradient: &CudaStorage,
        gradient_layout: &Layout,
    ) -> Result<()> {
        let stream = parameter.device.cuda_stream();
        let offset = offset(parameter_layout, parameter.dtype());
        let moved: Result<u64> =
            each!(&mut parameter.slice, values => values.device_ptr_mut(&stream).0);
        let read = address(gradient, gradient_layout, &stream)?;
        self.0.set(Some((moved? + offset, read)));
        Ok(())
    }
}
