use std::sync::Arc;
use std::time::Instant;

use candle_core::backprop::GradStore;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::cuda_backend::cudarc::driver::result::stream;
use candle_core::{CudaDevice, DType, Device, Tensor};

use super::address::locate;
use super::host::Cores;
use super::launch::{Launch, chunks, launches, survey};
use super::layout::Slot;
use super::state::State;
use super::surveyor::Surveyor;
use super::tables::Tables;
use crate::error::{Result, UpdateInterrupted};
use crate::optim::fused::{self, Choice, Loaded, Managed, Progress};
use crate::optim::fused::{Setup, Snapshot, misplaced, states};
use crate::optim::rule::Rule;
use crate::optim::{Committed, HostUpdate, HostUpdates};

/// The state of the pieces of parameters on the device, and the launches of a step.
///
/// The device decides whether a step is applied, so the host does not wait. Only the last launch of a step changes parameters, state
/// and the current control; those before it write to scratch memory and to the next control, so an error changes nothing. An update by
/// the host's cores waits before that launch, and changes state in host memory after it.
#[derive(Debug)]
pub struct Engine {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    states: Vec<Option<State>>,
    tables: Tables,
    survey: Option<Launch>,
    launches: Vec<Launch>,
    /// For the pieces that were measured last.
    surveyor: Option<Surveyor>,
    /// For updates by the host's cores, while these are possible.
    cores: Option<Cores>,
    choice: Choice,
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
            for (state, count) in kept.iter_mut().zip(counts) {
                if let Some(state) = state {
                    state.kept.step = count;
                }
            }
        }
        let stream = device.cuda_stream();
        let make =
            |parameter: &Managed, saved: Option<&_>| State::new::<R>(parameter, saved, device);
        let states = states(setup, loaded, &kept, make)?;
        let choice = |old: &Self| old.choice.clone();
        let mut choice = old.map_or_else(|| Choice::new(setup.host_update), choice);
        let old = old.and_then(|old| old.cores.as_ref());
        let mut cores = Cores::new(setup, &mut choice, old, &stream)?;
        let (mut slots, mut counts) = (Vec::new(), Vec::new());
        let mut first_chunk = 0;
        for (index, (parameter, state)) in setup.pieces.iter().zip(&states).enumerate() {
            let staged = cores.as_ref().map(|cores| cores.staged(index));
            let staged = staged.unwrap_or_default();
            let slot = state.as_ref();
            let slot = slot.map(|state| state.slot::<R>(parameter, first_chunk, staged, &stream));
            let slot = slot.transpose()?.unwrap_or_default();
            first_chunk += slot.chunks();
            slots.push(slot);
            counts.push(state.as_ref().map_or(0, |state| state.kept.step));
        }
        if slots.is_empty() {
            // A shard of nothing: steps are counted all the same.
            slots.push(Slot::default());
            counts.push(0);
        }
        let (chunks, mut report) = (chunks(&slots), 0);
        if let Some(cores) = &mut cores {
            report = cores.connect(device, &slots)?;
        }
        let progress = progress.unwrap_or(new);
        let needs_survey = setup.adjustment.needs_survey();
        let survey = needs_survey.then(|| survey(device, &chunks));
        Ok(Self {
            survey: survey.transpose()?,
            surveyor: None,
            launches: launches::<R>(device, &slots, &chunks)?,
            tables: Tables::new(device, &slots, &chunks, &counts, progress, report)?,
            cores,
            choice,
            device: device.clone(),
            stream,
            states,
            new,
        })
    }

    fn read(&self) -> Result<Progress> {
        Ok(self.tables.control(&self.device)?.progress(self.new))
    }

    /// Launches the update that the tables describe.
    fn launch<R: Rule>(
        &mut self,
        setup: &Setup<R>,
        gradients: &GradStore,
        is_by_cores: bool,
        squares: Option<f64>,
    ) -> Result<Committed> {
        let (stream, arguments) = (&self.stream, &self.tables.arguments);
        let mut cores = self.cores.as_mut().filter(|_| is_by_cores);
        let survey = self.survey.as_ref().filter(|_| squares.is_none());
        let mut committed = match (&survey, squares) {
            (Some(_), _) => Committed::Unknown,
            (None, Some(squares)) if squares.is_nan() => Committed::Skipped,
            (None, _) => Committed::Applied,
        };
        let (last, first) = self.launches.split_last().ok_or_else(misplaced)?;
        // SAFETY, of all launches: parameters, gradients and the engine's own memory are on this device, and this stream orders all work
        // on them and their frees; a free that the host asks for from here on comes after the launch. The stream waits for what other
        // streams did with them, since `describe` located them. The engine is borrowed mutably.
        for launch in survey.into_iter().chain(first) {
            // SAFETY: see above.
            unsafe { launch.run(stream, arguments) }?;
        }
        if let Some(cores) = &mut cores {
            // SAFETY: see above.
            unsafe { cores.collect(stream, arguments) }?;
            committed = cores.compute_values(setup, gradients, &mut self.states)?;
        }
        // SAFETY: see above.
        unsafe { last.run(stream, arguments) }?;
        if let Some(cores) = cores {
            let computed = cores.compute_state(setup, gradients, &mut self.states);
            // It reads and writes what `compute_values` has read, so it does not fail.
            computed.map_err(|error| UpdateInterrupted {
                reason: Some(error.into()),
            })?;
        }
        Ok(committed)
    }

    /// Takes the time of an update, unless that was skipped, and gives back what is not needed any more.
    /// Only a part of what has moved may have gradients: the time counts as if all had.
    fn measured(&mut self, is_by_cores: bool, part: f64, begin: Instant) {
        // SAFETY: the stream lives as long as `self`.
        let finished = unsafe { stream::synchronize(self.stream.cu_stream()) };
        let time = begin.elapsed();
        // The update is launched, so an error is the next call's, which a lost device fails too.
        let control = self.tables.control(&self.device);
        if finished.is_ok() && control.is_ok_and(|control| !control.is_skipped()) {
            self.choice.record(is_by_cores, time.div_f64(part));
        }
        if self.choice.decided() == HostUpdate::Device {
            // The slots keep its addresses, which only an update by the cores would use.
            self.cores = None;
        }
    }
}

impl<R: Rule> fused::Engine<R> for Engine {
    /// Builds another engine and replaces this one by it.
    fn set_up(&mut self, setup: &Setup<R>, loaded: Option<&Loaded>) -> Result<()> {
        *self = Self::new(&self.device, setup, loaded, Some(self))?;
        Ok(())
    }

    fn measure(&mut self, setup: &Setup<R>, is_new: bool, gradients: &GradStore) -> Result<f64> {
        if is_new {
            self.surveyor = None;
        }
        if self.surveyor.is_none() {
            self.surveyor = Some(Surveyor::new(&self.device, setup)?);
        }
        let surveyor = self.surveyor.as_mut().ok_or_else(misplaced)?;
        surveyor.measure(&self.device, setup, gradients)
    }

    fn commit(
        &mut self,
        setup: &Setup<R>,
        gradients: &GradStore,
        squares: Option<f64>,
    ) -> Result<Committed> {
        let moved = setup.pieces.iter().filter(|p| p.on_host);
        let [mut all, mut updated] = [0, 0];
        for parameter in moved {
            let bytes = parameter.host_bytes();
            all += bytes;
            if setup.gradient(parameter, gradients).is_some() {
                updated += bytes;
            }
        }
        let has_choice = self.cores.is_some() && updated > 0;
        let is_by_cores = has_choice && self.choice.next_is_by_cores();
        let is_timed = has_choice && self.choice.decided() == HostUpdate::Fastest;
        (self.tables).describe(&self.device, setup, gradients, is_by_cores, squares)?;
        // Reports errors of earlier calls, while nothing has changed.
        self.stream.context().bind_to_thread().w()?;
        if is_timed {
            // Only the update is timed.
            self.stream.synchronize().w()?;
        }
        let begin = Instant::now();
        let committed = self.launch(setup, gradients, is_by_cores, squares)?;
        if is_timed {
            self.measured(is_by_cores, updated as f64 / all as f64, begin);
        }
        // cudarc records for each tensor what other streams have to wait for: the last launch. An error here does not affect the update;
        // the next call returns it.
        for parameter in &setup.pieces {
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

    fn host_update(&self) -> Option<HostUpdates> {
        let mut states = self.states.iter().flatten();
        let has_any = states.any(|state| state.on_host.is_some());
        let [device, cores] = self.choice.times();
        has_any.then(|| HostUpdates {
            by: self.choice.decided(),
            device,
            cores,
            staging_bytes: self.cores.as_ref().map_or(0, Cores::bytes),
        })
    }

    fn snapshot(&self, index: usize, _: &Managed) -> Result<Option<Snapshot>> {
        let Some(state) = self.states.get(index).and_then(Option::as_ref) else {
            return Ok(None);
        };
        let count = self.tables.counts.try_slice(index..index + 1);
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
