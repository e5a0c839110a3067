//! The CUDA runtime, as far as code that nvcc compiled and linked into a program uses it: candle's quantized kernels and those of mixtures of
//! experts. Without computing, their launches are counted like all others. They cannot be executed, because their code is not PTX.

use std::cell::{Cell, RefCell};
use std::ffi::c_char;

use crate::card::Card;
use crate::counts;
use crate::driver::allocation::*;
use crate::driver::context::cuDevicePrimaryCtxRetain;
use crate::driver::current::{self, on_stream};
use crate::driver::device_query::*;
use crate::driver::error_text::{cuGetErrorName, cuGetErrorString};
use crate::driver::memset::cuMemsetD8Async;
use crate::driver::stream::cuStreamSynchronize;
use crate::simulator;
use crate::status::{Outcome, SUCCESS, Status, answer, not_modelled, store};

/// The stream of a thread, which functions whose names end in `_ptsz` use for 0.
const PER_THREAD: u64 = 2;

/// The extents of a grid or a block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

/// What `<<<grid, block, shared, stream>>>` says, until the kernel's stub asks for it.
#[derive(Clone, Copy)]
struct Configuration {
    grid: Extents,
    block: Extents,
    shared: usize,
    stream: u64,
}

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
    /// The place of the thread's device among those that are visible.
    static DEVICE: Cell<usize> = const { Cell::new(0) };
    static LAST: Cell<u32> = const { Cell::new(SUCCESS) };
}

/// The runtime makes a device's own context current at its first use.
fn begin() -> Outcome {
    let check = |status| match status {
        SUCCESS => Ok(()),
        status => Err(Status(status)),
    };
    if current::get() == 0 {
        let mut context = 0;
        check(cuInit(0))?;
        let number = simulator::visible().get(DEVICE.get());
        let number = *number.ok_or(Status::INVALID_DEVICE)? as i32;
        // SAFETY: a place for one handle.
        check(unsafe { cuDevicePrimaryCtxRetain(&mut context, number) })?;
        current::set(context);
    }
    Ok(())
}

/// Answers with a status, and keeps an error for `cudaGetLastError`.
fn runtime(body: impl FnOnce() -> u32) -> u32 {
    let status = match answer(begin) {
        SUCCESS => body(),
        status => status,
    };
    if status != SUCCESS {
        LAST.set(status);
    }
    status
}

fn per_thread(stream: u64) -> u64 {
    match stream {
        0 => PER_THREAD,
        stream => stream,
    }
}

/// Registers linked-in device code.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(_image: u64) -> u64 {
    1
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_handle: u64) {}

/// Unregisters linked-in device code.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaUnregisterFatBinary(_handle: u64) {}

/// Registers a linked-in kernel. The arguments are not used, and C lets a callee ignore them.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFunction(_handle: u64) {}

/// Registers a linked-in variable, in the same way.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterVar(_handle: u64) {}

/// Returns the linked-in module's state; its name is not used.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaInitModule(_handle: u64) -> u8 {
    1
}

/// Keeps a launch's configuration for the kernel's stub.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaPushCallConfiguration(
    grid: Extents,
    block: Extents,
    shared: usize,
    stream: u64,
) -> u32 {
    let configuration = Configuration {
        grid,
        block,
        shared,
        stream,
    };
    CONFIGURATIONS.with_borrow_mut(|all| all.push(configuration));
    SUCCESS
}

/// Returns it.
///
/// # Safety
/// Each pointer is null or a place for its value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaPopCallConfiguration(
    grid: *mut Extents,
    block: *mut Extents,
    shared: *mut usize,
    stream: *mut u64,
) -> u32 {
    answer(|| {
        let last = CONFIGURATIONS.with_borrow_mut(Vec::pop);
        let last = last.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: by contract.
        unsafe {
            store(grid, last.grid)?;
            store(block, last.block)?;
            store(shared, last.shared)?;
            store(stream, last.stream)
        }
    })
}

/// A kernel's handle is the address of its stub.
///
/// # Safety
/// `kernel` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaGetKernel(kernel: *mut u64, stub: u64) -> u32 {
    // SAFETY: by contract.
    answer(|| unsafe { store(kernel, stub) })
}

fn launch(grid: Extents, block: Extents, stream: u64) -> u32 {
    runtime(|| {
        answer(|| {
            let (mut device, _) = on_stream(stream)?;
            device.faults.check()?;
            let extents = [grid.x, grid.y, grid.z, block.x, block.y, block.z];
            if extents.contains(&0) {
                return Err(Status::INVALID_VALUE);
            }
            if device.computes {
                drop(device);
                not_modelled(
                    "executing kernels that are linked through the CUDA runtime (candle's quantized and mixture-of-experts ones)",
                );
            }
            device.faults.work()?;
            device.counted.launches += 1;
            device.trace.note(|| "launch of a linked kernel".to_owned());
            // Its name and its arguments are in code that nvcc compiled.
            counts::launch("linked", std::iter::empty());
            device.faults.launch().map(drop)
        })
    })
}

/// Launches a kernel: its arguments are not known here.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaLaunchKernel(
    _kernel: u64,
    grid: Extents,
    block: Extents,
    _arguments: u64,
    _shared: usize,
    stream: u64,
) -> u32 {
    launch(grid, block, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaLaunchKernel_ptsz(
    _kernel: u64,
    grid: Extents,
    block: Extents,
    _arguments: u64,
    _shared: usize,
    stream: u64,
) -> u32 {
    launch(grid, block, per_thread(stream))
}

/// As CUDA 12 launches it.
#[unsafe(no_mangle)]
pub extern "C" fn cudaLaunchKernel(
    _stub: u64,
    grid: Extents,
    block: Extents,
    _arguments: u64,
    _shared: usize,
    stream: u64,
) -> u32 {
    launch(grid, block, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaLaunchKernel_ptsz(
    _stub: u64,
    grid: Extents,
    block: Extents,
    _arguments: u64,
    _shared: usize,
    stream: u64,
) -> u32 {
    launch(grid, block, per_thread(stream))
}

/// Nothing depends on a kernel's settings here.
#[unsafe(no_mangle)]
pub extern "C" fn cudaFuncSetAttribute(_stub: u64, _attribute: u32, _value: i32) -> u32 {
    SUCCESS
}

/// The device that this thread uses, by its place among those that are visible.
///
/// # Safety
/// `ordinal` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDevice(ordinal: *mut i32) -> u32 {
    runtime(|| {
        answer(|| {
            let number = current::device()?.ordinal;
            let mut visible = simulator::visible().iter();
            let place = visible.position(|visible| *visible == number);
            // SAFETY: by contract.
            unsafe { store(ordinal, place.ok_or(Status::INVALID_DEVICE)? as i32) }
        })
    })
}

/// Makes a device's own context current to this thread.
#[unsafe(no_mangle)]
pub extern "C" fn cudaSetDevice(ordinal: i32) -> u32 {
    let before = DEVICE.replace(usize::try_from(ordinal).unwrap_or(usize::MAX));
    current::set(0);
    let status = runtime(|| SUCCESS);
    if status != SUCCESS {
        DEVICE.set(before);
    }
    status
}

/// # Safety
/// `count` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDeviceCount(count: *mut i32) -> u32 {
    // SAFETY: the same contract.
    runtime(|| unsafe { cuDeviceGetCount(count) })
}

/// The runtime's attributes have the driver's numbers.
///
/// # Safety
/// `to` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceGetAttribute(to: *mut i32, attribute: u32, ordinal: i32) -> u32 {
    // SAFETY: the same contract.
    runtime(|| unsafe { cuDeviceGetAttribute(to, attribute, ordinal) })
}

/// # Safety
/// `pointer` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMalloc(pointer: *mut u64, bytes: usize) -> u32 {
    // SAFETY: the same contract.
    runtime(|| unsafe { cuMemAlloc_v2(pointer, bytes) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaFree(pointer: u64) -> u32 {
    runtime(|| match pointer {
        0 => SUCCESS,
        pointer => cuMemFree_v2(pointer),
    })
}

/// # Safety
/// `pointer` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocAsync(pointer: *mut u64, bytes: usize, stream: u64) -> u32 {
    // SAFETY: the same contract.
    runtime(|| unsafe { cuMemAllocAsync(pointer, bytes, stream) })
}

/// # Safety
/// As for [`cudaMallocAsync`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocAsync_ptsz(pointer: *mut u64, bytes: usize, stream: u64) -> u32 {
    // SAFETY: the same contract.
    unsafe { cudaMallocAsync(pointer, bytes, per_thread(stream)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaFreeAsync(pointer: u64, stream: u64) -> u32 {
    runtime(|| cuMemFreeAsync(pointer, stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaFreeAsync_ptsz(pointer: u64, stream: u64) -> u32 {
    cudaFreeAsync(pointer, per_thread(stream))
}

/// Sets bytes to the lowest byte of a value.
#[unsafe(no_mangle)]
pub extern "C" fn cudaMemsetAsync(pointer: u64, value: i32, bytes: usize, stream: u64) -> u32 {
    runtime(|| cuMemsetD8Async(pointer, value as u8, bytes, stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMemsetAsync_ptsz(pointer: u64, value: i32, bytes: usize, stream: u64) -> u32 {
    cudaMemsetAsync(pointer, value, bytes, per_thread(stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamSynchronize(stream: u64) -> u32 {
    runtime(|| cuStreamSynchronize(stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamSynchronize_ptsz(stream: u64) -> u32 {
    cudaStreamSynchronize(per_thread(stream))
}

/// Blocks of so many threads that a multiprocessor holds, by threads alone.
///
/// # Safety
/// `blocks` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut i32,
    _stub: u64,
    threads: i32,
    _shared: usize,
    _flags: u32,
) -> u32 {
    // SAFETY: by contract.
    answer(|| unsafe { store(blocks, 2048 / threads.max(1)) })
}

/// What the runtime says of a kernel: sizes, the most threads, registers and the versions of its code.
#[repr(C)]
pub struct Attributes {
    sizes: [usize; 3],
    most_threads: i32,
    registers: i32,
    ptx_version: i32,
    binary_version: i32,
}

/// # Safety
/// `to` is null or a place for the attributes; those that newer runtimes have besides are left as they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaFuncGetAttributes(to: *mut Attributes, _stub: u64) -> u32 {
    let capability = Card::get().capability as i32;
    let attributes = Attributes {
        sizes: [0; 3],
        most_threads: 1024,
        registers: 32,
        ptx_version: capability,
        binary_version: capability,
    };
    // SAFETY: by contract.
    answer(|| unsafe { store(to, attributes) })
}

/// Returns the last error of this thread and forgets it.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> u32 {
    LAST.replace(SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> u32 {
    LAST.get()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(code: u32) -> *const c_char {
    let mut name = std::ptr::null();
    // SAFETY: a place for one pointer.
    unsafe { cuGetErrorName(code, &mut name) };
    name
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(code: u32) -> *const c_char {
    let mut text = std::ptr::null();
    // SAFETY: a place for one pointer.
    unsafe { cuGetErrorString(code, &mut text) };
    text
}
