//! The smoke test: does work on a GPU give right numbers?
//!
//! A kernel written in PTX replaces 16,384 numbers by twice the number and one, which is exact in f32, so results are compared for equality. It is
//! loaded in the PTX version and for the target of each of the build's kernels, because a driver may load one and refuse another, and then in a
//! version that every driver since CUDA 9 loads. All of it runs in a thread that is left behind if a call hangs; the device's primary context, the
//! memory and the module are released in any other case.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use super::probe::cuda::{Failed, Functions, NAME};
use super::{Finding, Findings, Source, code};
use crate::facts;
use crate::patience::Task;

/// Each thread replaces a value by twice the value and one.
const KERNEL: &str = "
.address_size 64
.visible .entry headroom_smoke(.param .u64 values)
{
    .reg .b32 %r<5>;
    .reg .f32 %f<3>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [values];
    cvta.to.global.u64 %d1, %d1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %d2, %r4, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.f32 %f1, [%d3];
    fma.rn.f32 %f2, %f1, 0f40000000, 0f3F800000;
    st.global.f32 [%d3], %f2;
    ret;
}
";
/// What every driver since CUDA 9 loads, on every GPU since Maxwell.
const OLDEST: &str = ".version 6.0\n.target sm_50\n";
const THREADS: c_uint = 256;
const BLOCKS: c_uint = 64;

/// Works on a CUDA device until the deadline. Work that hangs or panics counts as failed.
pub(super) fn run(source: &Source, ordinal: u32, deadline: Instant) -> Finding {
    let left = move || deadline.saturating_duration_since(Instant::now());
    let source = source.clone();
    let work = move || test(&source, ordinal, left() / 2);
    let mut finding = match Task::start("probe: the smoke test", work).wait(left()) {
        Ok(finding) => finding,
        Err(reason) => {
            let code = code::unfinished(reason);
            Finding {
                next_step: code.next_step.into(),
                command: code.command.into(),
                ..Finding::new(code::SMOKE_FAILED, code.title)
            }
        }
    };
    finding.seen = format!("cuda:{ordinal}: {}", finding.seen);
    finding.ordinal = Some(ordinal);
    finding
}

fn test(source: &Source, ordinal: u32, limit: Duration) -> Finding {
    let cuda = match Functions::load(source, NAME, limit) {
        Ok(cuda) => cuda,
        Err(error) => return Finding::new(code::SMOKE_FAILED, error.to_string()),
    };
    // The kernel in the PTX version and for the target of each of the build's kernels, which have to load as well.
    let kernels = source.kernels.iter();
    let mut headers: Vec<_> = kernels.filter_map(|kernels| kernels.header()).collect();
    headers.push(OLDEST.to_owned());
    for header in headers {
        let before: Vec<f32> = (0..THREADS * BLOCKS).map(value).collect();
        let mut values = before.clone();
        if let Err((call, status)) = work(&cuda, ordinal, &header, &mut values) {
            let mut findings = Findings::default();
            findings.answer(code::SMOKE_FAILED, (call, status), facts::cuda);
            return findings.0.remove(0);
        }
        let mut results = before.iter().zip(&values).enumerate();
        if let Some((index, (before, value))) = results.find(|(_, (x, y))| **y != 2. * **x + 1.) {
            let seen = format!("{value} at {index} instead of {}", 2. * before + 1.);
            return Finding::new(code::SMOKE_WRONG, seen);
        }
    }
    Finding::new(code::SMOKE_PASSED, "allocated, launched, read back")
}

/// Seventeen values from -1 to 1 in turn, so that neighbours and blocks differ. Results are exact.
fn value(index: c_uint) -> f32 {
    (index % 17) as f32 / 8. - 1.
}

/// Replaces the values by the kernel's results.
fn work(cuda: &Functions, ordinal: u32, header: &str, values: &mut [f32]) -> Result<(), Failed> {
    let (mut device, mut context) = (0, null_mut());
    let (mut address, mut module) = (0, null_mut());
    // SAFETY: the device's primary context is retained until the last call; it is current to this thread alone, which ends after the test. What
    // was made is released once, and nothing uses it afterwards. After a fault these calls fail, which changes nothing.
    unsafe {
        cuda.cuInit(0)?;
        cuda.cuDeviceGet(&mut device, ordinal as c_int)?;
        cuda.cuDevicePrimaryCtxRetain(&mut context, device)?;
        let current = cuda.cuCtxSetCurrent(context);
        let held = (&mut address, &mut module);
        let worked = current.and_then(|()| launch(cuda, header, values, held));
        if !module.is_null() {
            let _ = cuda.cuModuleUnload(module);
        }
        let _ = cuda.cuMemFree_v2(address);
        let _ = cuda.cuCtxSetCurrent(null_mut());
        let _ = cuda.cuDevicePrimaryCtxRelease_v2(device);
        worked
    }
}

/// Runs the kernel, and writes down the memory and the module that have to be released.
///
/// # Safety
/// A context is current to this thread.
unsafe fn launch(
    cuda: &Functions,
    header: &str,
    values: &mut [f32],
    (address, module): (&mut u64, &mut *mut c_void),
) -> Result<(), Failed> {
    let ptx = CString::new([header, KERNEL].concat()).unwrap_or_default();
    let (bytes, host) = (size_of_val(values), values.as_mut_ptr().cast::<c_void>());
    let (mut function, name) = (null_mut(), c"headroom_smoke".as_ptr());
    // SAFETY: the texts and places outlive the calls, both copies have the length of `values`, the kernel has one parameter of 8 bytes and
    // accesses as many values as there are threads, and the read waits for it.
    unsafe {
        cuda.cuMemAlloc_v2(address, bytes)?;
        cuda.cuMemcpyHtoD_v2(*address, host, bytes)?;
        cuda.cuModuleLoadData(module, ptx.as_ptr())?;
        cuda.cuModuleGetFunction(&mut function, *module, name)?;
        let mut arguments = [(&raw mut *address).cast::<c_void>()];
        cuda.cuLaunchKernel(
            function,
            BLOCKS,
            1,
            1,
            THREADS,
            1,
            1,
            0,
            null_mut(),
            arguments.as_mut_ptr(),
            null_mut(),
        )?;
        cuda.cuCtxSynchronize()?;
        cuda.cuMemcpyDtoH_v2(host, *address, bytes)
    }
}
