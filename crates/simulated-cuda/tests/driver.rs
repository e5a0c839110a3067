//! Errors, lost contexts, modules and properties of devices.

mod support;

use std::ffi::CStr;

use simulated_cuda::control::*;
use simulated_cuda::driver::allocation::*;
use simulated_cuda::driver::context::*;
use simulated_cuda::driver::context_stack::*;
use simulated_cuda::driver::device_query::*;
use simulated_cuda::driver::error_text::*;
use simulated_cuda::driver::event::*;
use simulated_cuda::driver::launch::*;
use simulated_cuda::driver::module::*;
use simulated_cuda::driver::stream::*;
use simulated_cuda::nvml;
use support::*;

/// Writes twice its argument to each thread's element.
const DOUBLE: &CStr = c"
.version 9.0
.target sm_90
.address_size 64

.visible .entry twice(
    .param .u64 twice_param_0,
    .param .u32 twice_param_1
)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [twice_param_0];
    ld.param.u32 %r1, [twice_param_1];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r2, %tid.x;
    add.s32 %r3, %r1, %r1;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r3;
    ret;
}
";

fn launch(function: u64, threads: u32, address: u64, number: u32) -> u32 {
    let arguments = [
        (&raw const address).cast::<u8>(),
        (&raw const number).cast(),
    ];
    unsafe {
        cuLaunchKernel(
            function,
            1,
            1,
            1,
            threads,
            1,
            1,
            0,
            0,
            arguments.as_ptr(),
            0,
        )
    }
}

#[test]
fn names_and_texts_of_errors() {
    let text = |code| {
        let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
        let statuses = unsafe {
            (
                cuGetErrorName(code, &mut name),
                cuGetErrorString(code, &mut text),
            )
        };
        (statuses == (0, 0)).then(|| unsafe { (CStr::from_ptr(name), CStr::from_ptr(text)) })
    };
    assert_eq!(
        text(2),
        Some((c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"))
    );
    assert_eq!(
        text(700).map(|(name, _)| name),
        Some(c"CUDA_ERROR_ILLEGAL_ADDRESS")
    );
    assert_eq!(text(4711), None);
}

#[test]
fn a_kernel_runs_and_one_that_leaves_its_memory_loses_the_context() {
    let _bench = Bench::new();
    let module = out(|place| unsafe { cuModuleLoadData(place, DOUBLE.as_ptr()) });
    let mut function = 0;
    assert_eq!(
        unsafe { cuModuleGetFunction(&mut function, module, c"thrice".as_ptr()) },
        500
    );
    assert_eq!(
        unsafe { cuModuleGetFunction(&mut function, module, c"twice".as_ptr()) },
        0
    );
    let block = allocate(default_pool(), 16, 0);
    assert_eq!(launch(function, 4, block, 21), 0);
    assert_eq!(download::<u32>(block, 4), [42; 4]);
    assert_eq!(launch(function, 2000, block, 1), INVALID_VALUE);

    assert_eq!(launch(function, 5, block, 1), 0, "the fault comes later");
    assert_eq!(cuCtxSynchronize(), 700);
    assert_eq!(cuMemFreeAsync(block, 0), 700);
    assert_eq!(counters().refused_frees, 1);
    simulated_cuda_clear_fault(0);
    assert_eq!(counters().live_allocations, 0);
    assert_eq!(counters().launches, 2);
    assert_eq!(cuModuleUnload(module), 0);
    assert_eq!(counters().live_modules, 0);
}

#[test]
fn ptx_newer_than_the_driver_is_refused_when_that_is_checked() {
    let _bench = Bench::new();
    let load = |version: String| {
        let text = format!("// .version 1.0\n.version {version}\n.target sm_90\n\0");
        let mut module = 0;
        let status = unsafe { cuModuleLoadData(&mut module, text.as_ptr().cast()) };
        assert!(status != 0 || cuModuleUnload(module) == 0);
        status
    };
    simulated_cuda_set_driver_version(12040);
    assert_eq!(load("9.0".to_owned()), 0);
    assert_eq!(simulated_cuda_set_checks_ptx(true), 0);
    for (driver, major, minor) in [
        (11080, 7, 8),
        (12000, 8, 0),
        (12040, 8, 4),
        (12050, 8, 5),
        (12060, 8, 5),
        (12080, 8, 7),
        (12090, 8, 8),
        (13000, 9, 0),
        (13010, 9, 1),
    ] {
        simulated_cuda_set_driver_version(driver);
        let statuses = [
            load(format!("{}.9", major - 1)),
            load(format!("{major}.{minor}")),
            load(format!("{major}.{}", minor + 1)),
            load(format!("{}.0", major + 1)),
        ];
        assert_eq!(statuses, [0, 0, 222, 222], "driver {driver}");
    }
    assert_eq!(load("unknown".to_owned()), 218);
    simulated_cuda_set_checks_ptx(false);
    simulated_cuda_set_driver_version(13000);
    assert_eq!(load("9.9".to_owned()), 0);
}

#[test]
fn a_context_is_lost_at_the_ordered_launch() {
    let _bench = Bench::new();
    let module = out(|place| unsafe { cuModuleLoadData(place, DOUBLE.as_ptr()) });
    let function = out(|place| unsafe { cuModuleGetFunction(place, module, c"twice".as_ptr()) });
    let block = upload(&[1u32]);
    simulated_cuda_fault_at_launch(0, 2, 719, false);
    assert_eq!(launch(function, 1, block, 5), 0);
    assert_eq!(cuStreamSynchronize(0), 0);
    assert_eq!(launch(function, 1, block, 6), 0);
    assert_eq!(try_allocate(default_pool(), 1, 0), Err(719));
    assert_eq!(launch(function, 1, block, 7), 719);
    simulated_cuda_clear_fault(0);
    assert_eq!(
        download::<u32>(block, 1),
        [10],
        "the lost launch did nothing"
    );
    simulated_cuda_fault_at_launch(0, 1, 700, true);
    assert_eq!(launch(function, 1, block, 8), 700);
    simulated_cuda_clear_fault(0);
    assert_eq!(cuMemFree_v2(block), 0);
    assert_eq!(cuModuleUnload(module), 0);
}

#[test]
fn devices_describe_themselves() {
    let _bench = Bench::new();
    let mut missing = 0;
    assert_eq!(unsafe { cuDeviceGet(&mut missing, 99) }, 101);
    assert_eq!(
        out(|place| unsafe { cuDeviceGetAttribute(place, 75, 0) }),
        9
    );
    assert_eq!(
        out(|place| unsafe { cuDeviceGetAttribute(place, 115, 0) }),
        1
    );
    simulated_cuda_set_pools_supported(0, false);
    assert_eq!(
        out(|place| unsafe { cuDeviceGetAttribute(place, 115, 0) }),
        0
    );
    let mut address = 0;
    assert_eq!(unsafe { cuMemAllocAsync(&mut address, 1, 0) }, 801);
    simulated_cuda_set_pools_supported(0, true);

    let device = out(|place| unsafe { nvml::system::nvmlDeviceGetHandleByIndex_v2(0, place) });
    let memory = out(|place| unsafe { nvml::memory::nvmlDeviceGetMemoryInfo(device, place) });
    assert_eq!(
        (memory.total, memory.used),
        (256 * MIB, counters().device_used)
    );
}

#[test]
fn a_trace_lists_what_happened() {
    let _bench = Bench::new();
    simulated_cuda_trace(0, true);
    free(allocate(default_pool(), 100, 0), 0);
    simulated_cuda_trace(0, false);
    let needed = unsafe { simulated_cuda_trace_text(0, std::ptr::null_mut(), 0) };
    let mut text = vec![0; needed];
    unsafe { simulated_cuda_trace_text(0, text.as_mut_ptr(), needed) };
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    assert_eq!(text, c"allocate 100\nfree 100\n");
}

/// `cuEventQuery` and `cuEventElapsedTime` behave as documented.
#[test]
fn events_are_timed_and_queried_as_documented() {
    const NOT_READY: u32 = 600;
    const INVALID_HANDLE: u32 = 400;
    let bench = Bench::new();
    let stream = out(|place| unsafe { cuStreamCreate(place, 1) });
    let create = |flags| out(|place| unsafe { cuEventCreate(place, flags) });
    let elapsed = |start, end| {
        let mut milliseconds = f32::NAN;
        let status = unsafe { cuEventElapsedTime_v2(&mut milliseconds, start, end) };
        (status, milliseconds)
    };
    let (start, end, untimed) = (create(0), create(1), create(2));
    // Unknown flags, and an interprocess event with timing.
    for flags in [8, 4] {
        let mut event = 0;
        assert_eq!(unsafe { cuEventCreate(&mut event, flags) }, INVALID_VALUE);
    }
    // Never recorded: it counts as finished and has no time.
    assert_eq!(cuEventQuery(start), 0);
    assert_eq!(elapsed(start, end).0, INVALID_HANDLE);

    assert_eq!(simulated_cuda_set_event_lag(0, 2), 0);
    for event in [start, end, untimed] {
        assert_eq!(cuEventRecord(event, stream), 0);
    }
    assert_eq!(elapsed(start, untimed).0, INVALID_HANDLE);
    assert_eq!(elapsed(start, end).0, NOT_READY);
    let queries = [0; 3].map(|_| cuEventQuery(start));
    assert_eq!(queries, [NOT_READY, NOT_READY, 0]);
    assert_eq!(elapsed(start, end).0, NOT_READY, "the other one is not");
    assert_eq!(cuEventSynchronize(end), 0);
    let (status, milliseconds) = elapsed(start, end);
    assert_eq!(status, 0);
    assert!((0. ..10_000.).contains(&milliseconds), "{milliseconds}");
    assert!(elapsed(end, start).1 <= 0.);

    // Recorded again, it is pending again; a synchronization of the stream finishes it.
    assert_eq!(cuEventRecord(start, stream), 0);
    assert_eq!(cuEventQuery(start), NOT_READY);
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert_eq!(cuEventQuery(start), 0);
    assert_eq!(
        [start, end, untimed].map(|event| cuEventDestroy_v2(event)),
        [0; 3]
    );
    assert_eq!(cuStreamDestroy_v2(stream), 0);
    drop(bench);
}

/// A device that another process uses in exclusive mode.
#[test]
fn a_context_can_be_refused() {
    let bench = Bench::new();
    assert_eq!(simulated_cuda_refuse_context(1, 46), 0);
    let mut context = 0;
    assert_eq!(unsafe { cuDevicePrimaryCtxRetain(&mut context, 1) }, 46);
    assert_eq!(simulated_cuda_refuse_context(1, 0), 0);
    assert_eq!(unsafe { cuDevicePrimaryCtxRetain(&mut context, 1) }, 0);
    assert_eq!(cuDevicePrimaryCtxRelease_v2(1), 0);
    drop(bench);
}
