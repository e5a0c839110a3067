use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream};
use candle_core::{CudaDevice, DType, Device, Tensor};

use super::frame::Frame;
use super::gradient::locate;
use super::launch::{Launch, Module, SURVEY};
use super::layout::{Arguments, Chunk, Coefficients, Control, misplaced};
use super::state::{Kept, Place, State, start};
use super::tasks::Tasks;
use crate::error::Result;
use crate::optim::Committed;
use crate::optim::fused::{Adjustment, Counters, Managed, Snapshot, Update};
use crate::optim::rule::{Kernel, Rule};

/// Blocks that share a chunk in a rule's one pass; as in kernels/elementwise.cuh.
const PARTS: u32 = 4;

/// All that is kept for the parameters on the device, and the launches of a step.
///
/// A step is decided on the device: what is next is computed beside what is current, and the last launch moves the parameters and
/// lets the one become the other. So an error on the way has changed nothing, and nobody waits.
#[derive(Debug)]
pub struct Engine {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    places: Vec<Place>,
    kept: Kept,
    frame: Frame,
    scratch: Scratch,
    launches: Vec<Launch>,
    arguments: Arguments,
}

/// What is of use within a step only, and tables that never change.
#[derive(Debug)]
struct Scratch {
    chunks: CudaSlice<Chunk>,
    next: CudaSlice<Control>,
    next_counts: CudaSlice<u64>,
    coefficients: CudaSlice<Coefficients>,
    partials: CudaSlice<f64>,
    _tasks: Option<Tasks>,
}

impl Engine {
    pub fn new<R: Rule>(
        device: &CudaDevice,
        _: &R,
        parameters: &[Managed],
        adjustment: &Adjustment,
    ) -> Result<Self> {
        let is_factored = R::KERNEL == Kernel::Adafactor;
        let on = Device::Cuda(device.clone());
        let stream = device.cuda_stream();
        let places = Place::all(parameters);
        let chunks = chunks(&places);
        let states = parameters
            .iter()
            .map(|parameter| State::new(parameter, &on, is_factored));
        let states = states.collect::<Result<Vec<_>>>()?;
        let counters = Counters::new(adjustment);
        let kept = Kept::new(device, &places, states, &vec![0; places.len()], counters)?;

        let module = Module::of(R::KERNEL);
        let launch = |module, kernel: &str, blocks, parts| {
            Launch::new(device, module, kernel, blocks, parts)
        };
        let mut launches = Vec::new();
        if adjustment.needs_survey() {
            launches.push(launch(SURVEY, "survey", chunks.len(), 1)?);
        }
        launches.push(launch(module, &Module::decision(R::KERNEL), 1, 1)?);
        let mut tasks = None;
        let mut parts = PARTS;
        if is_factored {
            let made = Tasks::new(device, &places)?;
            launches.extend(made.launches(device, module, chunks.len(), places.len())?);
            tasks = Some(made);
            parts = 1;
        }
        launches.push(launch(
            module,
            &format!("move_{}", module.name),
            chunks.len(),
            parts,
        )?);

        let scratch = Scratch {
            next: device.clone_htod(&[Control::from(counters)])?,
            next_counts: device.alloc_zeros(places.len())?,
            // SAFETY: each step writes them before it reads them.
            coefficients: unsafe { device.alloc(places.len()) }?,
            partials: device.alloc_zeros(chunks.len())?,
            chunks: device.clone_htod(&chunks)?,
            _tasks: tasks,
        };
        let frame = Frame::new(device, places.len())?;
        Ok(Self {
            arguments: arguments(&kept, &frame, &scratch, places.len(), &stream)?,
            device: device.clone(),
            stream,
            places,
            kept,
            frame,
            scratch,
            launches,
        })
    }

    pub fn commit<R: Rule>(&mut self, update: &Update<'_, R>) -> Result<Committed> {
        self.frame.fill(update)?;
        self.frame.send(&self.device)?;
        // Tells what calls before have left to be told, while nothing has changed.
        self.stream.context().bind_to_thread().w()?;
        for launch in &self.launches {
            // SAFETY: parameters, gradients and the engine's own memory lie on this device, all of whose work and frees are ordered
            // by this stream; a free that the host asks for from here on comes after the launch. What other streams had to do with
            // them is waited for by this one since they were found. The engine is borrowed mutably.
            unsafe { launch.run(&self.stream, &self.arguments) }?;
        }
        // cudarc keeps for each tensor what other streams have to wait for, which is now the last launch. The update is made: an error
        // here is not its, and comes up at the next call.
        for parameter in update.parameters {
            if let Some(gradient) = update.gradient(parameter) {
                let _ = locate(parameter, gradient);
            }
        }
        Ok(match update.adjustment.needs_survey() {
            true => Committed::Unknown,
            false => Committed::Applied,
        })
    }

    /// Without waiting: the scale is on the device, and what it is then is known there.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        let scale = match loss.dtype() {
            DType::F64 => self.kept.scale.clone(),
            dtype => self.kept.scale.to_dtype(dtype)?,
        };
        Ok(loss.broadcast_mul(&scale)?)
    }

    pub fn counters(&self) -> Result<Counters> {
        let control = self.device.clone_dtoh(&self.kept.current)?;
        let control = control.first().copied().ok_or_else(misplaced)?;
        Ok(control.into())
    }

    /// On the CPU: it is to be saved, and the device may be full.
    pub fn snapshot(&self, index: usize, _: &Managed) -> Result<Option<Snapshot>> {
        let Some(state) = self.kept.states.get(index) else {
            return Ok(None);
        };
        let count = self.kept.counts.try_slice(index..index + 1);
        let count = self.device.clone_dtoh(&count.ok_or_else(misplaced)?)?;
        let copy = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
        let tensors = state.tensors.iter().map(copy);
        Ok(Some(Snapshot {
            step: count.first().copied().unwrap_or_default(),
            tensors: tensors.collect::<candle_core::Result<_>>()?,
            master: state.master.as_ref().map(copy).transpose()?,
        }))
    }

    /// Goes on from here. The snapshots' tensors have the types and sizes that are kept, as the caller has checked.
    pub fn restore(&mut self, snapshots: Vec<Snapshot>, counters: Counters) -> Result<()> {
        let kept = (self.kept).restored(&self.device, &self.places, &snapshots, counters)?;
        let parameters = self.places.len();
        self.arguments = arguments(&kept, &self.frame, &self.scratch, parameters, &self.stream)?;
        self.kept = kept;
        Ok(())
    }
}

fn arguments(
    kept: &Kept,
    frame: &Frame,
    scratch: &Scratch,
    parameters: usize,
    stream: &CudaStream,
) -> Result<Arguments> {
    Ok(Arguments {
        frame: start(&frame.device, stream),
        slots: start(&kept.slots, stream),
        chunks: start(&scratch.chunks, stream),
        current: start(&kept.current, stream),
        next: start(&scratch.next, stream),
        counts: start(&kept.counts, stream),
        next_counts: start(&scratch.next_counts, stream),
        coefficients: start(&scratch.coefficients, stream),
        partials: start(&scratch.partials, stream),
        scale: super::layout::address_of(&kept.scale, stream)?,
        parameters: parameters as u64,
    })
}

/// A block's work; never none, since the last launch has a duty besides.
fn chunks(places: &[Place]) -> Vec<Chunk> {
    let chunks = (0..).zip(places).flat_map(|(parameter, place)| {
        (0..place.chunks() as u32).map(move |index| Chunk { parameter, index })
    });
    let mut chunks: Vec<_> = chunks.collect();
    if chunks.is_empty() {
        chunks.push(Chunk {
            parameter: 0,
            index: 0,
        });
    }
    chunks
}
