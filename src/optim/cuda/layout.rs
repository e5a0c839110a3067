//! Structs in the device's memory, with their counterparts in kernels/fused.cuh. The address of what is missing is 0.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use crate::optim::cpu::CHUNK;
use crate::optim::fused::{Halves, Progress, Setup};
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
#[derive(Debug, Clone, Copy, Default, PartialEq)]
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
#[derive(Debug, Clone, Copy, Default)]
pub struct Slot {
    pub first: u64,
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
    pub stream: u64,
}

/// The work of one block: a chunk of a piece, or a part of Adafactor's sums.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
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
const _: () = assert!(size_of::<Slot>() == 112);
const _: () = assert!(size_of::<Task>() == 16);
const _: () = assert!(size_of::<Control>() == 64);
const _: () = assert!(size_of::<Arguments>() == 200);

// SAFETY: plain numbers, laid out as `Entry` in kernels/fused.cuh.
unsafe impl DeviceRepr for Entry {}
// SAFETY: plain numbers, laid out as `Slot` in kernels/fused.cuh.
unsafe impl DeviceRepr for Slot {}
// SAFETY: plain numbers, laid out as `Task` in kernels/fused.cuh.
unsafe impl DeviceRepr for Task {}
// SAFETY: plain numbers, laid out as `Control` in kernels/fused.cuh.
unsafe impl DeviceRepr for Control {}

impl Slot {
    pub fn chunks(&self) -> u64 {
        self.len.div_ceil(CHUNK as u64)
    }
}

impl Header {
    /// `squares` replaces the survey's sum.
    pub fn new<R: Rule>(setup: &Setup<R>, squares: Option<f64>) -> Self {
        let adjustment = &setup.adjustment;
        let scale = adjustment.loss_scale;
        let [
            surveys,
            clips_norm,
            has_loss_scale,
            rounds_at_random,
            is_measured,
        ] = [
            adjustment.needs_survey(),
            adjustment.clip_norm.is_some(),
            scale.is_some(),
            setup.halves == Halves::Stochastic,
            squares.is_some(),
        ]
        .map(u64::from);
        Self {
            hyper: setup.rule.numbers(),
            clip_norm: adjustment.clip_norm.unwrap_or(0.),
            bound: adjustment.bound(),
            growth: scale.map_or(1., |scale| scale.growth),
            backoff: scale.map_or(1., |scale| scale.backoff),
            interval: scale.map_or(1, |scale| scale.interval),
            flags: surveys
                | clips_norm << 1
                | has_loss_scale << 2
                | rounds_at_random << 3
                | is_measured << 4,
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
