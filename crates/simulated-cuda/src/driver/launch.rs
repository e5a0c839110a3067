//! Kernel launches.

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::current::on_stream;
use crate::card::{Card, number};
use crate::counts;
use crate::device::Device;
use crate::device::buffers::{Apart, buffers};
use crate::device::late::answer_at_once;
use crate::handle::{Handle, Kind};
use crate::ptx::{Fault, Kernel, Launch, Limits, Sample};
use crate::report;
use crate::status::{Outcome, Status, not_modelled};

const MOST_THREADS: u64 = 1024;
/// The variable that sets the number of instructions after which a warp counts as caught in an endless loop.
const INSTRUCTIONS: &str = "SIMULATED_CUDA_INSTRUCTIONS";

/// Packs the arguments. The caller passes a pointer to each.
///
/// # Safety
/// `arguments` points to one pointer per parameter, each to as many bytes as the parameter has.
unsafe fn pack(kernel: &Kernel, arguments: *const *const u8) -> Outcome<Vec<u8>> {
    let params = kernel.params();
    let length = params
        .iter()
        .map(|param| param.offset + param.size)
        .max()
        .unwrap_or(0);
    let mut packed = vec![0; length];
    if length > 0 && arguments.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    for (index, param) in params.iter().enumerate() {
        // SAFETY: by contract, `arguments` has an entry for each parameter.
        let argument = unsafe { arguments.add(index).read() };
        if argument.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let to = &mut packed[param.offset..param.offset + param.size];
        // SAFETY: by contract, the argument has the parameter's size.
        unsafe { std::ptr::copy_nonoverlapping(argument, to.as_mut_ptr(), to.len()) };
    }
    Ok(packed)
}

/// # Safety
/// As for [`pack`].
unsafe fn run(function: u64, launch: Launch, stream: u64, arguments: *const *const u8) -> Outcome {
    let (mut device, key) = on_stream(stream)?;
    device.faults.check()?;
    let handle = Handle::decode(function, Kind::Function)?;
    let known = device
        .objects
        .functions
        .get(&handle.serial)
        .filter(|_| handle.device == device.ordinal);
    let kernel = known.ok_or(Status::INVALID_HANDLE)?.kernel.clone();
    let threads: u64 = launch.block.iter().map(|&size| u64::from(size)).product();
    let empty = launch.grid.contains(&0) || launch.block.contains(&0);
    if empty || threads > MOST_THREADS || launch.dynamic_shared > Card::get().shared_per_block() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: by contract.
    let arguments = unsafe { pack(&kernel, arguments) }?;
    device.faults.work()?;
    device.counted.launches += 1;
    let buffers = buffers(&kernel, &arguments, &device.memory);
    counts::launch(kernel.name(), buffers.map(|buffer| buffer.bytes()));
    device.trace.note(|| format!("launch {}", kernel.name()));
    if !device.faults.launch()? {
        return Ok(());
    }
    device.note_arguments(&arguments, key);
    device.note_computed(&arguments);
    if !device.computes {
        return Ok(());
    }
    // As on a real device, the launch has succeeded by the time a fault happens; later calls report it.
    device.execute(move |device| interpret(device, &kernel, launch, &arguments));
    Ok(())
}

/// The limits of all launches, and the sample that large ones are executed in part with.
static LIMITS: LazyLock<(Limits, Sample)> = LazyLock::new(|| {
    let limits = Limits::default();
    let limits = Limits {
        instructions: number(INSTRUCTIONS, limits.instructions),
        ..limits
    };
    let sample = Sample {
        above: number("SIMULATED_CUDA_SAMPLED_ABOVE", 4096),
        others: number("SIMULATED_CUDA_SAMPLED_BLOCKS", 16),
    };
    (limits, sample)
});

/// The device stays locked, so that its memory does not change while the interpreter uses it.
fn interpret(device: &Device, kernel: &Kernel, launch: Launch, arguments: &[u8]) -> Outcome {
    let (mut limits, sample) = *LIMITS;
    let (outcome, place) = match device.samples {
        true => {
            limits.sample = Some(sample);
            let apart = Apart::new(kernel, arguments, &device.memory);
            let outcome = kernel.launch_within(&launch, &apart.arguments, &apart, &limits);
            let place = match &outcome {
                Err(Fault::IllegalAddress(address)) => apart.describe(*address),
                _ => None,
            };
            (outcome, place)
        }
        false => (
            kernel.launch_within(&launch, arguments, &device.memory, &limits),
            None,
        ),
    };
    let fault = match outcome {
        Ok(accessed) => {
            counts::accessed(kernel.name(), accessed);
            return Ok(());
        }
        Err(fault) => fault,
    };
    let mut text = format!("kernel {}: ", kernel.name());
    _ = match place {
        Some(place) => write!(text, "illegal {place}"),
        None => write!(text, "{fault}"),
    };
    let status = match &fault {
        Fault::IllegalAddress(_) => Status::ILLEGAL_ADDRESS,
        Fault::MisalignedAddress(_) => Status::MISALIGNED_ADDRESS,
        Fault::Assert(_) => Status::ASSERT,
        Fault::Endless => {
            let most = limits.instructions;
            _ = write!(
                text,
                ", after {most} instructions of a warp (`{INSTRUCTIONS}`)"
            );
            Status::LAUNCH_TIMEOUT
        }
        Fault::Unsupported(_) | Fault::Hang(_) => not_modelled(&text),
    };
    if device.samples || fault == Fault::Endless {
        report::problem("kernel", &text);
    }
    eprintln!("simulated CUDA: {text}");
    Err(status)
}

/// Launches a kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: u64,
    arguments: *const *const u8,
    extra: u64,
) -> u32 {
    answer_at_once(|| {
        if extra != 0 {
            not_modelled("cuLaunchKernel with packed arguments");
        }
        let launch = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared: shared,
        };
        // SAFETY: the caller passes the kernel's arguments.
        unsafe { run(function, launch, stream, arguments) }
    })
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub struct Config {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: u64,
    pub attributes: u64,
    pub attribute_count: u32,
}

/// Launches a kernel; launch attributes (clusters and the like) are not modelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const Config,
    function: u64,
    arguments: *const *const u8,
    extra: u64,
) -> u32 {
    answer_at_once(|| {
        // SAFETY: null, or the caller's configuration.
        let config = unsafe { config.as_ref() }.ok_or(Status::INVALID_VALUE)?;
        if extra != 0 || config.attribute_count != 0 {
            not_modelled("cuLaunchKernelEx with attributes or packed arguments");
        }
        let launch = Launch {
            grid: config.grid,
            block: config.block,
            dynamic_shared: config.shared,
        };
        // SAFETY: the caller passes the kernel's arguments.
        unsafe { run(function, launch, config.stream, arguments) }
    })
}
