use std::cell::Cell;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, DType, InplaceOp2, Layout, Tensor};

use super::layout::{address, address_mut, code, misplaced};
use crate::error::{OptimizerError, Result};
use crate::optim::axes::{Axes, MAX_RANK};
use crate::optim::fused::{Managed, Update};
use crate::optim::rule::Rule;

/// The largest number of hyper-parameters of a rule.
const HYPER_PARAMETERS: usize = 8;
/// Words of `Header` and `Entry` in kernels/fused.cuh, and of the axes of a strided gradient.
const HEADER: usize = HYPER_PARAMETERS + 6;
const ENTRY: usize = 6;
const AXES: usize = 2 * MAX_RANK;

const SURVEYS: u64 = 1;
const CLIPS_NORM: u64 = 2;
const HAS_LOSS_SCALE: u64 = 4;

/// The description of one step for the device, in words of 64 bits: a header, an entry for each parameter, and the axes of strided
/// gradients. Its memory is reused, and it is sent only if it differs from the last one.
#[derive(Debug)]
pub struct Frame {
    words: Vec<u64>,
    axes: Vec<u64>,
    sent: Vec<u64>,
    pub device: CudaSlice<u64>,
}

impl Frame {
    pub fn new(device: &CudaDevice, parameters: usize) -> Result<Self> {
        let most = HEADER + parameters.max(1) * (ENTRY + AXES);
        Ok(Self {
            words: Vec::with_capacity(most),
            axes: Vec::with_capacity(parameters * AXES),
            sent: Vec::with_capacity(most),
            device: device.alloc_zeros(most)?,
        })
    }

    /// Describes an update, on the host. All checks of it are here.
    pub fn fill<R: Rule>(&mut self, update: &Update<'_, R>) -> Result<()> {
        self.words.clear();
        self.axes.clear();
        self.header(update);
        let start = HEADER + update.parameters.len() * ENTRY;
        for parameter in update.parameters {
            let entry = match parameter.gradient(update.gradients) {
                Some(gradient) => self.entry(update, parameter, gradient, start)?,
                None => [0; ENTRY],
            };
            self.words.extend(entry);
        }
        self.words.extend_from_slice(&self.axes);
        Ok(())
    }

    fn header<R: Rule>(&mut self, update: &Update<'_, R>) {
        let adjustment = update.adjustment;
        // No rule has more than `HYPER_PARAMETERS`; the bits of all rules are tested against the CPU's.
        let hyper = update.rule.hyper_parameters().map(|hyper| hyper.value);
        let hyper = hyper.chain(std::iter::repeat(0.)).take(HYPER_PARAMETERS);
        self.words.extend(hyper.map(f64::to_bits));
        let scale = adjustment.loss_scale;
        let numbers = [
            adjustment.clip_norm.unwrap_or(0.),
            adjustment.bound(),
            scale.map_or(1., |scale| scale.growth),
            scale.map_or(1., |scale| scale.backoff),
        ];
        self.words.extend(numbers.map(f64::to_bits));
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(adjustment.needs_survey(), SURVEYS)
            | flag(adjustment.clip_norm.is_some(), CLIPS_NORM)
            | flag(scale.is_some(), HAS_LOSS_SCALE);
        self.words
            .extend([scale.map_or(1, |scale| scale.interval), flags]);
    }

    fn entry<R: Rule>(
        &mut self,
        update: &Update<'_, R>,
        parameter: &Managed,
        gradient: &Tensor,
        start: usize,
    ) -> Result<[u64; ENTRY]> {
        let layout = Axes::of(gradient.layout());
        let layout = layout.map_err(|rank| OptimizerError::GradientStrides {
            parameter: parameter.name.clone(),
            rank,
        })?;
        let (moved, read) = locate(parameter, gradient)?;
        let place = start + self.axes.len();
        if layout.rank > 0 {
            let numbers = layout.sizes.iter().chain(&layout.strides);
            self.axes.extend(numbers.map(|&number| number as u64));
        }
        let rates = update.rates(parameter.group);
        Ok([
            moved,
            read,
            u64::from(code(gradient.dtype())?) | (layout.rank as u64) << 32,
            rates.learning_rate.to_bits(),
            rates.weight_decay.to_bits(),
            place as u64,
        ])
    }

    pub fn send(&mut self, device: &CudaDevice) -> Result<()> {
        if self.words == self.sent {
            return Ok(());
        }
        // If the copy fails, the content of the device's memory is unknown.
        self.sent.clear();
        device.memcpy_htod(&self.words, &mut self.device)?;
        std::mem::swap(&mut self.words, &mut self.sent);
        Ok(())
    }
}

/// The addresses of a parameter and its gradient, under candle's own locks and checks.
pub fn locate(parameter: &Managed, gradient: &Tensor) -> candle_core::Result<(u64, u64)> {
    let locate = Locate(Cell::new(None));
    parameter.handle.inplace_op2(gradient, &locate)?;
    locate.0.get().ok_or_else(misplaced)
}

/// An operation that only takes the addresses of its operands.
struct Locate(Cell<Option<(u64, u64)>>);

impl InplaceOp2 for Locate {
    fn name(&self) -> &'static str {
        "fused-update"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<()> {
        Err(misplaced())
    }

    fn cuda_fwd(
        &self,
        parameter: &mut CudaStorage,
        parameter_layout: &Layout,
        gradient: &CudaStorage,
        gradient_layout: &Layout,
    ) -> candle_core::Result<()> {
        let stream = parameter.device.cuda_stream();
        let place = |address: u64, layout: &Layout, dtype: DType| {
            address + (layout.start_offset() * dtype.size_in_bytes()) as u64
        };
        let (moved, read) = (parameter.dtype(), gradient.dtype());
        let parameter = address_mut(parameter, moved, &stream)?;
        let gradient = address(gradient, read, &stream)?;
        self.0.set(Some((
            place(parameter, parameter_layout, moved),
            place(gradient, gradient_layout, read),
        )));
        Ok(())
    }
}
