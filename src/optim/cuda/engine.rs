use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::{CudaDevice, DType, Device, Tensor};

use super::frame::{Frame, locate};
use super::launch::{Launch, Module, SURVEY};
use super::layout::{Arguments, misplaced};
use super::tables::{Place, State, Tables};
use super::tasks::Tasks;
use crate::error::Result;
use crate::optim::Committed;
use crate::optim::fused::{Adjustment, Counters, Managed, Origin, Snapshot, Update};
use crate::optim::rule::{Kernel, Rule};

/// Blocks that share a chunk in a rule's one pass; as in kernels/elementwise.cuh.
const PARTS: u32 = 4;

/// The state of the parameters on the device, and the launches of a step.
///
/// The device decides about a step: the launches before the last compute the next counters and sums beside the current ones, and
/// the last launch updates the parameters and makes the next ones current. So an error in between changes nothing, and the host does not wait.
#[derive(Debug)]
pub struct Engine {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    states: Vec<State>,
    tables: Tables,
    frame: Frame,
    /// Read by launches, through addresses.
    _tasks: Option<Tasks>,
    launches: Vec<Launch>,
    arguments: Arguments,
    adjustment: Adjustment,
}

impl Engine {
    pub fn new<R: Rule>(
        device: &CudaDevice,
        parameters: &[Managed],
        adjustment: &Adjustment,
    ) -> Result<Self> {
        let on = Device::Cuda(device.clone());
        let states = parameters.iter();
        let states = states.map(|parameter| State::new(parameter, None, &on, is_factored::<R>()));
        let states = states.collect::<Result<_>>()?;
        let counts = vec![0; parameters.len()];
        let counters = Counters::new(adjustment);
        Self::of::<R>(device, parameters, adjustment, states, counts, counters)
    }

    /// Builds another engine, which shares the state that is kept, and replaces this one by it.
    pub fn set_up<R: Rule>(
        &mut self,
        parameters: &[Managed],
        origins: Vec<Origin>,
        counters: Option<Counters>,
    ) -> Result<()> {
        let on = Device::Cuda(self.device.clone());
        let counters = counters.map_or_else(|| self.counters(), Ok)?;
        let old = self.device.clone_dtoh(&self.tables.counts)?;
        let (mut states, mut counts) = (Vec::new(), Vec::new());
        for (parameter, origin) in parameters.iter().zip(&origins) {
            let new = |saved| State::new(parameter, saved, &on, is_factored::<R>());
            let (state, count) = match origin {
                Origin::Fresh => (new(None)?, 0),
                Origin::Kept(index) => {
                    let kept = self.states.get(*index).zip(old.get(*index));
                    let (state, count) = kept.ok_or_else(misplaced)?;
                    (state.clone(), *count)
                }
                Origin::Loaded(saved) => (new(Some(saved))?, saved.step),
            };
            states.push(state);
            counts.push(count);
        }
        let (device, adjustment) = (&self.device, &self.adjustment);
        *self = Self::of::<R>(device, parameters, adjustment, states, counts, counters)?;
        Ok(())
    }

    fn of<R: Rule>(
        device: &CudaDevice,
        parameters: &[Managed],
        adjustment: &Adjustment,
        states: Vec<State>,
        counts: Vec<u64>,
        counters: Counters,
    ) -> Result<Self> {
        let stream = device.cuda_stream();
        let places = Place::all(parameters);
        let tables = Tables::new(device, &places, &states, counts, counters)?;
        let tasks = match is_factored::<R>() {
            true => Some(Tasks::new(device, &places)?),
            false => None,
        };
        let frame = Frame::new(device, parameters.len())?;
        Ok(Self {
            launches: launches::<R>(device, adjustment, tasks.as_ref(), &tables, places.len())?,
            arguments: tables.arguments(&frame.device, places.len(), &stream)?,
            device: device.clone(),
            stream,
            states,
            tables,
            frame,
            _tasks: tasks,
            adjustment: *adjustment,
        })
    }

    pub fn commit<R: Rule>(&mut self, update: &Update<'_, R>) -> Result<Committed> {
        self.frame.fill(update)?;
        self.frame.send(&self.device)?;
        // Reports errors of earlier calls, while nothing has changed.
        self.stream.context().bind_to_thread().w()?;
        for launch in &self.launches {
            // SAFETY: parameters, gradients and the engine's own memory are on this device, and this stream orders all work on them and
            // their frees; a free that the host asks for from here on comes after the launch. The stream waits for what other streams
            // did with them, since `fill` located them. The engine is borrowed mutably.
            unsafe { launch.run(&self.stream, &self.arguments) }?;
        }
        // cudarc keeps for each tensor what other streams have to wait for, which is now the last launch. The update is done: an error
        // here does not concern it, and comes up at the next call.
        for parameter in update.parameters {
            if let Some(gradient) = parameter.gradient(update.gradients) {
                let _ = locate(parameter, gradient);
            }
        }
        Ok(match update.adjustment.needs_survey() {
            true => Committed::Unknown,
            false => Committed::Applied,
        })
    }

    /// Does not wait: the scale is on the device.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        let scale = match loss.dtype() {
            DType::F64 => self.tables.scale.clone(),
            dtype => self.tables.scale.to_dtype(dtype)?,
        };
        Ok(loss.broadcast_mul(&scale)?)
    }

    pub fn counters(&self) -> Result<Counters> {
        let control = self.device.clone_dtoh(&self.tables.current)?;
        let control = control.first().copied().ok_or_else(misplaced)?;
        Ok(control.into())
    }

    /// Copies in host memory: the device may be full.
    pub fn snapshot(&self, index: usize) -> Result<Option<Snapshot>> {
        let Some(state) = self.states.get(index) else {
            return Ok(None);
        };
        let count = self.tables.counts.try_slice(index..index + 1);
        let count = self.device.clone_dtoh(&count.ok_or_else(misplaced)?)?;
        let copy = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
        let tensors = state.tensors.iter().map(copy);
        Ok(Some(Snapshot {
            step: count.first().copied().unwrap_or_default(),
            tensors: tensors.collect::<candle_core::Result<_>>()?,
            master: state.master.as_ref().map(copy).transpose()?,
        }))
    }
}

fn is_factored<R: Rule>() -> bool {
    R::KERNEL == Kernel::Adafactor
}

/// The launches of a step, in order.
fn launches<R: Rule>(
    device: &CudaDevice,
    adjustment: &Adjustment,
    tasks: Option<&Tasks>,
    tables: &Tables,
    parameters: usize,
) -> Result<Vec<Launch>> {
    let (module, chunks) = (Module::of(R::KERNEL), tables.chunks.len());
    let mut launches = Vec::new();
    if adjustment.needs_survey() {
        launches.push(Launch::new(device, SURVEY, "survey", chunks, 1)?);
    }
    let decision = Module::decision(R::KERNEL);
    launches.push(Launch::new(device, module, &decision, 1, 1)?);
    let mut parts = PARTS;
    if let Some(tasks) = tasks {
        launches.extend(tasks.launches(device, module, chunks, parameters)?);
        parts = 1;
    }
    let last = format!("move_{}", module.name);
    launches.push(Launch::new(device, module, &last, chunks, parts)?);
    Ok(launches)
}
