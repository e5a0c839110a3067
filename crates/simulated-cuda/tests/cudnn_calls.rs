//! cuDNN's handles, workspaces and errors, and the order of its work.

mod support;

use std::process::Command;

use simulated_cuda::control::*;
use simulated_cuda::cudnn::{describing::*, entry::*, handle::*};
use simulated_cuda::driver::copying::*;
use simulated_cuda::driver::host_memory::*;
use simulated_cuda::driver::stream::*;
use support::convolution::*;
use support::*;

#[test]
fn algorithms_come_with_their_workspaces() {
    let _bench = Bench::new();
    let call = Call::new(&PLAIN, 0, 0, 1);
    let mut performances = [Default::default(); 8];
    let list = |requested, place| {
        let mut count = -1;
        let status = unsafe {
            cudnnGetConvolutionForwardAlgorithm_v7(
                call.handle,
                call.input,
                call.filter,
                call.convolution,
                call.output,
                requested,
                &mut count,
                place,
            )
        };
        (status, count)
    };
    assert_eq!(list(8, performances.as_mut_ptr()), (0, 8));
    for found in &performances {
        let memory = call.workspace(found.algorithm);
        assert_eq!(memory.err().unwrap_or(0), found.status);
        assert_eq!(memory.unwrap_or(0), found.memory);
    }
    assert_eq!(performances[0].status, 0);
    assert_eq!(list(2, performances.as_mut_ptr()), (0, 2));
    assert_eq!(list(8, std::ptr::null_mut()).0, BAD_PARAM);
    assert_eq!(list(0, performances.as_mut_ptr()).0, BAD_PARAM);

    assert_eq!(call.workspace(0), Ok(0));
    let patches = 4 * 3 * 2 * 5 * 5 * 4;
    assert_eq!(call.workspace(2), Ok(patches));
    assert_eq!(call.workspace(4), Err(NOT_SUPPORTED));
    assert_eq!(call.workspace(8), Err(BAD_PARAM));

    let tensors = [336, 144, 300].map(|count| upload(&vec![0.25f32; count]));
    let space = upload(&vec![0u8; patches]);
    let scalars = (1.0f32, 0.0);
    let forward = |space, bytes| call.forward(scalars, tensors, (2, space, bytes));
    assert_eq!(forward(space, patches - 1), BAD_PARAM);
    assert_eq!(forward(space, patches), 0);
    assert_eq!(counters().lost_context, 0);
    assert_eq!(forward(0, patches), 0);
    assert_eq!(counters().lost_context, 700, "a workspace is used");
    assert_eq!(forward(space, patches), EXECUTION_FAILED);
    simulated_cuda_clear_fault(0);
    give_back(&tensors);
    give_back(&[space]);
}

#[test]
fn what_does_not_fit_fails() {
    let _bench = Bench::new();
    let mut call = Call::new(&PLAIN, 0, 0, 1);
    let tensors = [336, 144, 300].map(|count| upload(&vec![0.25f32; count]));
    let scalars = (1.0f32, 0.0);
    let none = (0, 0, 0);
    for missing in 0..3 {
        let mut places = tensors;
        places[missing] = 0;
        assert_eq!(call.forward(scalars, places, none), BAD_PARAM);
    }
    assert_eq!(unsafe { cudnnCreate(std::ptr::null_mut()) }, BAD_PARAM);
    assert_eq!(
        unsafe { cudnnCreateTensorDescriptor(std::ptr::null_mut()) },
        BAD_PARAM
    );
    assert_eq!(cudnnSetStream(0, 0), BAD_PARAM);
    assert_eq!(cudnnDestroy(call.input), NOT_INITIALIZED);
    assert_eq!(cudnnDestroyTensorDescriptor(0), BAD_PARAM);
    assert_eq!(cudnnDestroyTensorDescriptor(call.filter), BAD_PARAM);
    let set = |padding, stride, mode| {
        cudnnSetConvolution2dDescriptor(call.convolution, padding, 0, stride, 1, 1, 1, mode, 0)
    };
    assert_eq!(set(-1, 1, 1), BAD_PARAM);
    assert_eq!(set(0, 0, 1), BAD_PARAM);
    assert_eq!(set(0, 1, 2), BAD_PARAM);
    let size = |height| cudnnSetTensor4dDescriptor(call.input, 0, 0, 2, 4, height, 6);
    assert_eq!(size(0), BAD_PARAM);
    assert_eq!(call.workspace(0), Ok(0), "what failed changed nothing");
    assert_eq!(size(8), 0);
    assert_eq!(call.workspace(0), Err(BAD_PARAM), "the output is too low");
    assert_eq!(size(7), 0);
    let sums_in_bf16 = cudnnSetConvolution2dDescriptor(call.convolution, 0, 0, 1, 1, 1, 1, 1, 9);
    assert_eq!(sums_in_bf16, 0);
    assert_eq!(call.workspace(0), Err(NOT_SUPPORTED));
    assert_eq!(set(0, 1, 1), 0);
    assert_eq!(call.forward(scalars, tensors, none), 0);

    let unset = out(|place| unsafe { cudnnCreateTensorDescriptor(place) });
    let set = std::mem::replace(&mut call.output, unset);
    assert_eq!(call.workspace(0), Err(BAD_PARAM));
    call.output = set;
    assert_eq!(cudnnDestroyTensorDescriptor(unset), 0);
    give_back(&tensors);
}

#[test]
fn a_handle_takes_memory_and_fails_without_it() {
    let _bench = Bench::new();
    let before = counters().device_used;
    let handle = out(|place| unsafe { cudnnCreate(place) });
    assert_eq!(counters().device_used, before + MIB);
    assert_eq!(counters().live_libraries, 1);
    let stream = stream();
    assert_eq!(cudnnSetStream(handle, stream), 0);
    assert_eq!(
        out(|place| unsafe { cudnnGetStream(handle, place) }),
        stream
    );
    assert_eq!(cudnnDestroy(handle), 0);
    assert_eq!(cudnnDestroy(handle), NOT_INITIALIZED);
    assert_eq!(counters().device_used, before);

    let mut handle = 0;
    simulated_cuda_fail_library(0, 1, 1, 0);
    assert_eq!(
        unsafe { cudnnCreate(&mut handle) },
        DEVICE_ALLOCATION_FAILED
    );
    assert_eq!(simulated_cuda_set_capacity(0, before + MIB / 2), 0);
    assert_eq!(
        unsafe { cudnnCreate(&mut handle) },
        DEVICE_ALLOCATION_FAILED
    );
    assert_eq!(handle, 0);
}

/// Devices are made for a mode once, so that the other mode needs another process, which runs this test again.
#[test]
fn without_computing_the_output_stays_and_the_checks_remain() {
    const MODE: &str = "SIMULATED_CUDA_MODE";
    if std::env::var_os(MODE).is_none() {
        let test = "without_computing_the_output_stays_and_the_checks_remain";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let status = again.args(["--exact", test]).env(MODE, "allocate").status();
        assert!(status.unwrap().success());
        return;
    }
    let _bench = Bench::new();
    let call = Call::new(&PLAIN, 0, 0, 1);
    let tensors = [336, 144, 300].map(|count| upload(&vec![0.25f32; count]));
    let forward = |tensors| call.forward((1.0f32, 0.0), tensors, (0, 0, 0));
    assert_eq!(forward(tensors), 0);
    assert_eq!(download::<f32>(tensors[2], 300), [0.25; 300]);
    assert_eq!(counters().library_calls, 1);
    assert_eq!(forward([tensors[0], tensors[1], tensors[2] + 4096]), 0);
    assert_eq!(counters().lost_context, 700);
    simulated_cuda_clear_fault(0);
    give_back(&tensors);
}

/// Copies pinned ones to the input on one stream and convolves on another, and returns the hazards.
fn after_a_copy(waits: bool) -> u64 {
    let _bench = Bench::new();
    assert_eq!(simulated_cuda_set_late(0, true), 0);
    let call = Call::new(&PLAIN, 0, 0, 1);
    let (copying, computing) = (stream(), stream());
    assert_eq!(cudnnSetStream(call.handle, computing), 0);
    let bytes = 336 * 4;
    let pinned: u64 = out(|place| unsafe { cuMemHostAlloc(place, bytes, 0) });
    // SAFETY: memory of the simulator, which is this process's.
    unsafe { std::slice::from_raw_parts_mut(pinned as *mut f32, 336) }.fill(1.0);
    let tensors = [336, 144, 300].map(|count| upload(&vec![0.25f32; count]));
    let status = unsafe { cuMemcpyHtoDAsync_v2(tensors[0], pinned, bytes, copying) };
    assert_eq!(status, 0);
    if waits {
        assert_eq!(cuStreamSynchronize(copying), 0);
    }
    assert_eq!(call.forward((1.0f32, 0.0), tensors, (0, 0, 0)), 0);
    let result: Vec<f32> = download(tensors[2], 300);
    assert_eq!(result, [4.0 * 6.0 * 0.25; 300], "late work comes first");
    let hazards = counters().hazards;
    assert_eq!(cuStreamSynchronize(copying), 0);
    assert_eq!(cuMemFreeHost(pinned), 0);
    give_back(&tensors);
    assert_eq!(simulated_cuda_set_late(0, false), 0);
    hazards
}

#[test]
fn work_on_other_streams_is_followed() {
    // The copy is not ordered after the allocation either, which is made on the default stream.
    let allocation = after_a_copy(true);
    assert_eq!(after_a_copy(false), allocation + 1);
}
