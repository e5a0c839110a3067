use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::{CudaDevice, DType, Device, Tensor};

use super::address::{address_of, code, locate};
use super::host::Moments;
use super::launch::{Launch, chunks, launches};
use super::layout::Slot;
use super::tables::Tables;
use crate::error::Result;
use crate::optim::Committed;
use crate::optim::fused::{self, Loaded, Managed, Progress, Setup, Snapshot, misplaced, states};
use crate::optim::rule::Rule;

/// The state of the parameters on the device, and the launches of a step.
///
/// The device decides whether a step is applied, so the host does not wait. Only the last launch of a step changes parameters, state
/// and the current control; those before it write to scratch memory and to the next control, so an error changes nothing.
#[derive(Debug)]
pub struct Engine {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    states: Vec<Option<State>>,
    tables: Tables,
    launches: Vec<Launch>,
    /// The progress before the first step.
    new: Progress,
}

/// The state of one parameter.
#[derive(Debug, Clone)]
struct State {
    /// The number of steps is that of the time when the tables were made; the device counts on.
    kept: Snapshot,
    /// The moments if they are in host memory; `kept` is then without them.
    on_host: Option<Arc<Moments>>,
    /// The next tensors and the means of rows of the matrices that the rule factors, used within a step.
    scratch: Vec<Tensor>,
}

impl State {
    /// Copies saved state, or makes new state.
    fn new<R: Rule>(
        parameter: &Managed,
        saved: Option<&Snapshot>,
        device: &CudaDevice,
    ) -> Result<Self> {
        let on_host = match parameter.on_host {
            true => Some(Arc::new(Moments::new(
                parameter,
                saved,
                &device.cuda_stream(),
            )?)),
            false => None,
        };
        let moved = on_host.as_ref().map_or(0, |_| parameter.by_rule().len());
        let device = &Device::Cuda(device.clone());
        let kept = Snapshot::from_index(moved, parameter, saved, device)?;
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

    fn slot<R: Rule>(
        &self,
        parameter: &Managed,
        first_chunk: u64,
        stream: &CudaStream,
    ) -> Result<Slot> {
        let by_rule = parameter.by_rule();
        let moved = self.on_host.as_ref().map_or(0, |_| by_rule.len());
        let tensors = (self.kept.tensors).split_at_checked(by_rule.len() - moved);
        let (moments, master) = tensors.ok_or_else(misplaced)?;
        let address = |tensor| address_of(tensor, stream);
        let state = match &self.on_host {
            Some(moments) => [0, 1].map(|index| moments.address(index)),
            None => [address(moments.first())?, address(moments.get(1))?],
        };
        let matrices = R::matrices(parameter.var.dims());
        let [rows, columns] = match parameter.var.dims() {
            [.., rows, columns] if matrices > 0 => [*rows, *columns],
            _ => [0; 2],
        };
        Ok(Slot {
            len: parameter.len as u64,
            state,
            master: address(master.first())?,
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
        })
    }
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
        let (mut slots, mut counts) = (Vec::new(), Vec::new());
        let mut first_chunk = 0;
        for (parameter, state) in setup.parameters.iter().zip(&states) {
            let slot = state.as_ref();
            let slot = slot.map(|state| state.slot::<R>(parameter, first_chunk, &stream));
            let slot = slot.transpose()?.unwrap_or_default();
            first_chunk += slot.chunks();
            slots.push(slot);
            counts.push(state.as_ref().map_or(0, |state| state.kept.step));
        }
        let chunks = chunks(&slots);
        Ok(Self {
            launches: launches(device, setup, &slots, &chunks)?,
            tables: Tables::new(device, &slots, &chunks, &counts, progress.unwrap_or(new))?,
            device: device.clone(),
            stream,
            states,
            new,
        })
    }

    fn read(&self) -> Result<Progress> {
        Ok(self.tables.control(&self.device)?.progress(self.new))
    }
}

impl<R: Rule> fused::Engine<R> for Engine {
    /// Builds another engine and replaces this one by it.
    fn set_up(&mut self, setup: &Setup<R>, loaded: Option<&Loaded>) -> Result<()> {
        *self = Self::new(&self.device, setup, loaded, Some(self))?;
        Ok(())
    }

    fn commit(&mut self, setup: &Setup<R>, gradients: &GradStore) -> Result<Committed> {
        self.tables.describe(&self.device, setup, gradients)?;
        // Reports errors of earlier calls, while nothing has changed.
        self.stream.context().bind_to_thread().w()?;
        for launch in &self.launches {
            // SAFETY: parameters, gradients and the engine's own memory are on this device, and this stream orders all work on them and
            // their frees; a free that the host asks for from here on comes after the launch. The stream waits for what other streams
            // did with them, since `describe` located them. The engine is borrowed mutably.
            unsafe { launch.run(&self.stream, &self.tables.arguments) }?;
        }
        // cudarc records for each tensor what other streams have to wait for: the last launch. An error here does not affect the update;
        // the next call returns it.
        for parameter in &setup.parameters {
            if let Some(gradient) = setup.gradient(parameter, gradients) {
                let _ = locate(parameter, gradient);
            }
        }
        Ok(match setup.adjustment.needs_survey() {
            true => Committed::Unknown,
            false => Committed::Applied,
        })
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
