//! What the kernels of an update are told: tables of parameters, gradients and chunks on the device, of which only what has changed is sent.

use std::ffi::c_void;
use std::ptr::from_ref;

use bytemuck::{NoUninit, cast_slice};
use candle_core::backprop::GradStore;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::launch_kernel;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DevicePtr};
use candle_core::{CudaDevice, Device, Result as CandleResult, Tensor};

use super::layout::{
    Arguments, COEFFICIENTS, Control, Entry, Header, Slot, Task, address_of, code, locate,
};
use crate::error::{Result, invalid};
use crate::optim::blend::Axes;
use crate::optim::fused::{Progress, Setup, misplaced};
use crate::optim::rule::Rule;

/// The engine's own memory on the device, besides the state of parameters.
#[derive(Debug)]
pub struct Tables {
    entries: Sent<Entry>,
    /// Axes of gradients that are not contiguous.
    axes: Sent<Axes>,
    /// Of [`Slot`]s.
    _slots: CudaSlice<u8>,
    /// Of [`Task`]s.
    _chunks: CudaSlice<u8>,
    /// The number of chunks of all pieces.
    pub chunks: usize,
    /// The current [`Control`], then the next.
    control: CudaSlice<u8>,
    /// How often each parameter was updated.
    pub counts: CudaSlice<u64>,
    /// The coefficients of each parameter, then a sum for each chunk.
    scratch: CudaSlice<f64>,
    /// The loss scale, in f64 so that losses are multiplied and gradients divided by the same number.
    pub scale: Tensor,
    pub arguments: Arguments,
}

impl Tables {
    /// `counts` are those of the slots, 0 for all others.
    pub fn new(
        device: &CudaDevice,
        mut slots: Vec<Slot>,
        mut counts: Vec<u64>,
        progress: Progress,
    ) -> Result<Self> {
        let stream = device.cuda_stream();
        let tasks = Slot::cut(&mut slots);
        let parameters = slots.len();
        counts.resize(parameters, 0);
        let control = Control::from(progress);
        let entries = Sent::new(device, vec![Entry::default(); parameters])?;
        let axes = Sent::new(device, vec![Axes::default(); parameters])?;
        let slots = device.clone_htod(cast_slice::<Slot, u8>(&slots))?;
        let control = device.clone_htod(cast_slice::<Control, u8>(&[control; 2]))?;
        let counts = device.clone_htod(&counts)?;
        let scratch = device.alloc_zeros(COEFFICIENTS * parameters + tasks.len())?;
        let chunks = device.clone_htod(cast_slice::<Task, u8>(&tasks))?;
        let scale = Tensor::new(progress.scale(), &Device::Cuda(device.clone()))?;
        let coefficients = start(&scratch, &stream);
        let arguments = Arguments {
            header: Header::default(),
            entries: start(&entries.device, &stream),
            axes: start(&axes.device, &stream),
            slots: start(&slots, &stream),
            chunks: start(&chunks, &stream),
            control: start(&control, &stream),
            counts: start(&counts, &stream),
            coefficients,
            partials: coefficients + (COEFFICIENTS * parameters * size_of::<f64>()) as u64,
            scale: address_of(Some(&scale), &stream)?,
            parameters: parameters as u64,
        };
        Ok(Self {
            entries,
            axes,
            _slots: slots,
            _chunks: chunks,
            chunks: tasks.len(),
            control,
            counts,
            scratch,
            scale,
            arguments,
        })
    }

    /// Describes an update and sends what has changed since the last one. It checks the gradients' layouts first.
    pub fn describe<R: Rule>(
        &mut self,
        device: &CudaDevice,
        setup: &Setup<R>,
        gradients: &GradStore,
        squares: Option<f64>,
    ) -> Result<()> {
        self.arguments.header = Header::new(setup, squares);
        for (index, (parameter, _)) in setup.ranges().enumerate() {
            let Some(gradient) = setup.gradient(parameter, gradients) else {
                self.entries.set(index, Entry::default());
                continue;
            };
            let axes = Axes::of(gradient.layout());
            let axes = axes.map_err(|rank| {
                invalid!(
                    Optimizer,
                    "the gradient of `{}` has {rank} non-contiguous axes: make it contiguous",
                    parameter.name
                )
            })?;
            if axes.rank > 0 {
                self.axes.set(index, axes);
            }
            let addresses = locate(parameter, gradient)?;
            let rates = setup.rates(parameter);
            let entry = Entry {
                parameter: addresses.0,
                gradient: addresses.1,
                gradient_dtype: code(gradient.dtype())?,
                rank: axes.rank as u32,
                learning_rate: rates.learning_rate,
                weight_decay: rates.weight_decay,
            };
            self.entries.set(index, entry);
        }
        self.axes.send(device)?;
        self.entries.send(device)
    }

    /// The sums of the chunks, after the device has finished.
    pub fn partials(&self, device: &CudaDevice) -> Result<Vec<f64>> {
        let coefficients = COEFFICIENTS * self.entries.rows.len();
        let partials = self.scratch.try_slice(coefficients..);
        Ok(device.clone_dtoh(&partials.ok_or_else(misplaced)?)?)
    }

    pub fn control(&self, device: &CudaDevice) -> Result<Control> {
        let controls = device.clone_dtoh(&self.control)?;
        let current = controls.get(..size_of::<Control>());
        Ok(bytemuck::pod_read_unaligned(current.ok_or_else(misplaced)?))
    }
}

/// A table on the host, which is sent to the device when it has changed. Its memory is reused.
#[derive(Debug)]
struct Sent<T> {
    rows: Vec<T>,
    is_sent: bool,
    /// The rows' bytes.
    device: CudaSlice<u8>,
}

impl<T: NoUninit + PartialEq> Sent<T> {
    fn new(device: &CudaDevice, rows: Vec<T>) -> Result<Self> {
        Ok(Self {
            device: device.clone_htod(cast_slice::<T, u8>(&rows))?,
            rows,
            is_sent: true,
        })
    }

    fn set(&mut self, index: usize, row: T) {
        if let Some(old) = self.rows.get_mut(index)
            && *old != row
        {
            *old = row;
            self.is_sent = false;
        }
    }

    fn send(&mut self, device: &CudaDevice) -> Result<()> {
        if !self.is_sent {
            device.memcpy_htod(cast_slice::<T, u8>(&self.rows), &mut self.device)?;
            self.is_sent = true;
        }
        Ok(())
    }
}

fn start<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> u64 {
    slice.device_ptr(stream).0
}

const THREADS: u32 = 256;
/// Blocks that share a chunk; as in kernels/elementwise.cuh.
const PARTS: u32 = 4;

/// The code of a module with kernels.
fn code_of(module: &str) -> CandleResult<&'static str> {
    match module {
        "adam" => Ok(include_str!(concat!(env!("OUT_DIR"), "/adam.ptx"))),
        "lion" => Ok(include_str!(concat!(env!("OUT_DIR"), "/lion.ptx"))),
        "sgd" => Ok(include_str!(concat!(env!("OUT_DIR"), "/sgd.ptx"))),
        "survey" => Ok(include_str!(concat!(env!("OUT_DIR"), "/survey.ptx"))),
        _ => Err(misplaced()),
    }
}

/// A kernel and its number of blocks.
#[derive(Debug)]
pub struct Launch {
    function: CudaFunction,
    blocks: (u32, u32, u32),
}

impl Launch {
    fn new(
        device: &CudaDevice,
        (module, kernel): (&str, &str),
        blocks: usize,
        parts: u32,
    ) -> CandleResult<Self> {
        let code = code_of(module)?;
        let module = format!("candle-headroom-{module}");
        let function = device.get_or_load_custom_func(kernel, &module, code)?;
        let blocks = u32::try_from(blocks.max(1)).map_err(|_| misplaced())?;
        Ok(Self {
            function: function.into_cuda_function(),
            blocks: (blocks, parts, 1),
        })
    }

    /// Not by cudarc's builder, which allocates and records events after the launch, which can fail when parameters have already
    /// changed.
    ///
    /// # Safety
    /// The memory that `arguments` points to lives until the stream has executed this launch.
    pub unsafe fn run(&self, stream: &CudaStream, arguments: &Arguments) -> CandleResult<()> {
        let mut arguments: [*mut c_void; 1] = [from_ref(arguments).cast_mut().cast()];
        // SAFETY: the kernels take `Arguments`, which are copied before this returns. The grid is that of the tables that the kernel
        // reads; the caller guarantees the rest.
        unsafe {
            launch_kernel(
                self.function.cu_function(),
                self.blocks,
                (THREADS, 1, 1),
                0,
                stream.cu_stream(),
                &mut arguments,
            )
        }
        .w()
    }
}

/// The launch that sums the gradients' squares in each chunk.
pub fn survey(device: &CudaDevice, chunks: usize) -> CandleResult<Launch> {
    Launch::new(device, ("survey", "survey"), chunks, 1)
}

/// The launches of an update, after the survey.
pub fn launches<R: Rule>(device: &CudaDevice, chunks: usize) -> CandleResult<[Launch; 2]> {
    let decision = format!("decide_{}", R::NAME.to_lowercase());
    let last = format!("move_{}", R::KERNELS);
    Ok([
        Launch::new(device, (R::KERNELS, &decision), 1, 1)?,
        Launch::new(device, (R::KERNELS, &last), chunks, PARTS)?,
    ])
}
