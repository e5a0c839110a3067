//! The passes on CUDA, by kernels of this crate.

mod layout;
mod state;
mod tables;

use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::{CudaDevice, DType, Device, Result as CandleResult, Tensor};

use super::cpu::{CHUNK, sum_of_chunks};
use super::fused::{self, Loaded, Managed, Progress, Setup, Snapshot, misplaced, states};
use super::rule::Rule;
use super::{Committed, Shard};
use crate::error::Result;
use layout::{Slot, locate};
use state::State;
use tables::{Launch, Tables, launches, survey};

/// The state of the parameters on the device, and the launches of a step.
///
/// The device decides whether a step is applied, so the host does not wait. Only the last launch of a step changes parameters, state
/// and the current control; those before it write to scratch memory and to the next control, so an error changes nothing.
#[derive(Debug)]
pub struct Engine {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    states: Vec<Option<State>>,
    /// The slot of each parameter's first range.
    first_slots: Vec<usize>,
    tables: Tables,
    survey: Option<Launch>,
    launches: [Launch; 2],
    /// For the elements that were measured last.
    surveyor: Option<Surveyor>,
    /// The progress before the first step.
    new: Progress,
}

impl Engine {
    /// Shares the state that is kept with `old`.
    pub fn new<R: Rule>(
        device: &CudaDevice,
        setup: &Setup<R>,
        loaded: Option<&Loaded>,
        old: Option<&Self>,
    ) -> Result<Self> {
        let new = Progress::new(&setup.adjustment);
        let mut progress = loaded.map(|loaded| loaded.progress);
        let mut kept = Vec::new();
        if let Some(old) = old {
            progress = Some(progress.map_or_else(|| old.read(), Ok)?);
            kept.clone_from(&old.states);
            let counts = device.clone_dtoh(&old.tables.counts)?;
            for (state, slot) in kept.iter_mut().zip(&old.first_slots) {
                if let Some((state, count)) = state.as_mut().zip(counts.get(*slot)) {
                    state.kept.step = *count;
                }
            }
        }
        let stream = device.cuda_stream();
        let make = |parameter: &Managed, saved: Option<&_>| State::new(parameter, saved, device);
        let states = states(setup, loaded, &kept, make)?;
        let (mut slots, mut counts, mut first_slots) = (Vec::new(), Vec::new(), Vec::new());
        for (parameter, state) in setup.parameters.iter().zip(&states) {
            first_slots.push(slots.len());
            let mut before = 0;
            for range in &parameter.ranges {
                let slot = state.as_ref();
                let slot = slot.map(|state| state.slot(parameter, range, before, &stream));
                slots.push(slot.transpose()?.unwrap_or_default());
                before += range.len();
                counts.push(state.as_ref().map_or(0, |state| state.kept.step));
            }
        }
        let tables = Tables::new(device, slots, counts, progress.unwrap_or(new))?;
        let needs_survey = setup.adjustment.needs_survey();
        let survey = needs_survey.then(|| survey(device, tables.chunks));
        Ok(Self {
            survey: survey.transpose()?,
            surveyor: None,
            launches: launches::<R>(device, tables.chunks)?,
            tables,
            device: device.clone(),
            stream,
            states,
            first_slots,
            new,
        })
    }

    fn read(&self) -> Result<Progress> {
        Ok(self.tables.control(&self.device)?.progress(self.new))
    }

    /// Launches the update that the tables describe.
    fn launch(&self, squares: Option<f64>) -> Result<Committed> {
        let (stream, arguments) = (&self.stream, &self.tables.arguments);
        let survey = self.survey.as_ref().filter(|_| squares.is_none());
        for launch in survey.into_iter().chain(&self.launches) {
            // SAFETY: parameters, gradients and the engine's own memory are on this device, and this stream orders all work on them and
            // their frees; a free that the host asks for from here on comes after the launch. The stream waits for what other streams did
            // with them, since `describe` located them. The engine is borrowed mutably by `commit`.
            unsafe { launch.run(stream, arguments) }?;
        }
        Ok(match (survey, squares) {
            (Some(_), _) => Committed::Unknown,
            (None, Some(squares)) if squares.is_nan() => Committed::Skipped,
            (None, _) => Committed::Applied,
        })
    }
}

impl<R: Rule> fused::Engine<R> for Engine {
    /// Builds another engine and replaces this one by it.
    fn set_up(&mut self, setup: &Setup<R>, loaded: Option<&Loaded>) -> Result<()> {
        *self = Self::new(&self.device, setup, loaded, Some(self))?;
        Ok(())
    }

    fn measure(&mut self, setup: &Setup<R>, gradients: &GradStore) -> Result<f64> {
        let surveyor = self.surveyor.take();
        let surveyor = surveyor.filter(|surveyor| surveyor.shard == setup.shard);
        let surveyor = surveyor.map_or_else(|| Surveyor::new(&self.device, setup), Ok);
        // After an error the next call makes it again.
        let mut surveyor = surveyor?;
        let squares = surveyor.measure(&self.device, setup, gradients)?;
        self.surveyor = Some(surveyor);
        Ok(squares)
    }

    fn commit(
        &mut self,
        setup: &Setup<R>,
        gradients: &GradStore,
        squares: Option<f64>,
    ) -> Result<Committed> {
        (self.tables).describe(&self.device, setup, gradients, squares)?;
        // Reports errors of earlier calls, while nothing has changed.
        self.stream.context().bind_to_thread().w()?;
        let committed = self.launch(squares)?;
        // cudarc records for each tensor what other streams have to wait for: the last launch. An error here does not affect the update;
        // the next call returns it.
        for parameter in &setup.parameters {
            if let Some(gradient) = setup.gradient(parameter, gradients) {
                let _ = locate(parameter, gradient);
            }
        }
        Ok(committed)
    }

    /// Does not wait, because the scale is on the device.
    fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        let scale = match loss.dtype() {
            DType::F64 => self.tables.scale.clone(),
            dtype => self.tables.scale.to_dtype(dtype)?,
        };
        Ok(loss.broadcast_mul(&scale)?)
    }

    fn progress(&self) -> Result<Progress> {
        self.read()
    }

    fn snapshot(&self, index: usize, _: &Managed) -> Result<Option<Snapshot>> {
        let state = self.states.get(index).and_then(Option::as_ref);
        let Some((state, &slot)) = state.zip(self.first_slots.get(index)) else {
            return Ok(None);
        };
        let count = self.tables.counts.try_slice(slot..slot + 1);
        let count = self.device.clone_dtoh(&count.ok_or_else(misplaced)?)?;
        let moments = state.on_host.as_ref().map(|moments| moments.tensors());
        let mut tensors = moments.transpose()?.unwrap_or_default();
        // In host memory, because the device may be full.
        for tensor in &state.kept.tensors {
            tensors.push(tensor.to_device(&Device::Cpu)?);
        }
        Ok(Some(Snapshot {
            step: count.first().copied().unwrap_or_default(),
            tensors,
        }))
    }
}

/// Sums the squares of the gradients' elements in ranges, which need not be those of the state.
#[derive(Debug)]
struct Surveyor {
    shard: Option<Shard>,
    tables: Tables,
    survey: Launch,
}

impl Surveyor {
    fn new<R: Rule>(device: &CudaDevice, setup: &Setup<R>) -> Result<Self> {
        let slots = setup.ranges();
        let slots = slots.map(|(parameter, range)| Slot::of(parameter, range));
        let slots = slots.collect::<CandleResult<_>>()?;
        let tables = Tables::new(device, slots, Vec::new(), Progress::new(&setup.adjustment))?;
        Ok(Self {
            shard: setup.shard.clone(),
            survey: survey(device, tables.chunks)?,
            tables,
        })
    }

    /// Adds in the order in which the CPU adds.
    fn measure<R: Rule>(
        &mut self,
        device: &CudaDevice,
        setup: &Setup<R>,
        gradients: &GradStore,
    ) -> Result<f64> {
        self.tables.describe(device, setup, gradients, None)?;
        let stream = device.cuda_stream();
        stream.context().bind_to_thread().w()?;
        // SAFETY: the gradients and the tables are on this device, and this stream orders all work on them and their frees. `describe`
        // has made it wait for other streams, and the sums are read before this returns. The kernel writes to the tables alone.
        unsafe { self.survey.run(&stream, &self.tables.arguments) }?;
        let partials = self.tables.partials(device)?;
        let (mut rest, mut total) = (partials.as_slice(), 0.);
        for (parameter, range) in setup.ranges() {
            let mine;
            (mine, rest) = rest
                .split_at_checked(range.len().div_ceil(CHUNK))
                .ok_or_else(misplaced)?;
            if setup.gradient(parameter, gradients).is_some() {
                total += sum_of_chunks(mine);
            }
        }
        Ok(total)
    }
}
