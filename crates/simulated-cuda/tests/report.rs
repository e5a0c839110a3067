//! The report at a program's exit. It is of a whole process, so each test runs its program, a function below, in a process of its own.

mod support;

use std::os::unix::process::ExitStatusExt;

use simulated_cuda::driver::allocation::*;
use simulated_cuda::driver::context::*;
use simulated_cuda::driver::context_stack::*;
use simulated_cuda::driver::copying::*;
use simulated_cuda::driver::device_query::*;
use simulated_cuda::driver::host_memory::*;
use simulated_cuda::driver::stream::*;
use simulated_cuda::marks::*;
use support::MIB;
use support::process::{Ended, run};

fn open() {
    assert_eq!(cuInit(0), 0);
    let mut context = 0;
    // SAFETY: a place for one handle.
    assert_eq!(unsafe { cuDevicePrimaryCtxRetain(&mut context, 0) }, 0);
    assert_eq!(cuCtxSetCurrent(context), 0);
}

fn allocate(bytes: u64) -> Result<u64, u32> {
    let mut address = 0;
    // SAFETY: a place for one address.
    match unsafe { cuMemAlloc_v2(&mut address, bytes as usize) } {
        0 => Ok(address),
        status => Err(status),
    }
}

fn enter(kind: u32, name: &std::ffi::CStr, samples: u64) {
    // SAFETY: a text with a final zero byte.
    unsafe { simulated_cuda_enter(kind, name.as_ptr(), samples) };
}

#[test]
#[ignore = "a program of the test below"]
fn trains() {
    open();
    allocate(4 * MIB).expect("there is room");
    for samples in [4, 2] {
        enter(0, c"step 1", samples);
        enter(1, c"forward", 0);
        // SAFETY: a text with a final zero byte.
        unsafe { simulated_cuda_layers(c"layers.3".as_ptr()) };
        let activations = allocate(samples * 8 * MIB);
        // SAFETY: null is the text of no layers.
        unsafe { simulated_cuda_layers(std::ptr::null()) };
        simulated_cuda_leave();
        simulated_cuda_could_save(samples * MIB);
        if let Ok(activations) = activations {
            assert_eq!(cuMemFree_v2(activations), 0);
        }
        simulated_cuda_leave();
    }
    let known = allocate(8).expect("there is room");
    let unknown = allocate(8).expect("there is room");
    let mut value = 7u64;
    let place = &raw mut value as u64;
    // SAFETY: `value` has 8 bytes.
    unsafe {
        assert_eq!(cuMemcpyHtoD_v2(known, place, 8), 0);
        value = 0;
        assert_eq!(cuMemcpyDtoH_v2(place, known, 8), 0);
        assert_eq!(value, 7);
        assert_eq!(cuMemcpyDtoH_v2(place, unknown, 8), 0);
        assert_eq!(value, 0);
        // To pinned memory and back nobody looks at it, but then somebody does.
        let mut pinned = 0;
        assert_eq!(cuMemHostAlloc(&mut pinned, 8, 0), 0);
        assert_eq!(cuMemcpyDtoHAsync_v2(pinned, unknown, 8, 0), 0);
        assert_eq!(cuMemcpyHtoDAsync_v2(known, pinned, 8, 0), 0);
        assert_eq!(cuMemcpyDtoH_v2(place, known, 8), 0);
    }
}

#[test]
fn it_says_who_held_the_memory_and_what_was_not_computed() {
    // The context and what is held leave less than 32 MiB.
    let memory = (48 * MIB).to_string();
    let Ended { status, report, .. } = run("trains", &[("SIMULATED_CUDA_MEMORY", &memory)]);
    assert!(status.success());
    let peak = 20 * MIB;
    let parts = [
        format!("\"peak_tensor_bytes\":{peak}"),
        "\"peak\":{\"work\":\"step 1\",\"phase\":\"forward\",\"layers\":\"layers.3\",\"held\":[\
         {\"phase\":\"\",\"layers\":\"\",\"bytes\":4194304},{\"phase\":\"forward\",\"layers\":\"layers.3\",\"bytes\":16777216}]}"
            .to_owned(),
        "\"refused\":{\"work\":\"step 1\",\"phase\":\"forward\",\"layers\":\"layers.3\",\"bytes\":33554432,\"held_bytes\":4194304,\
         \"by_limit\":false,\"allocations_since\":3}"
            .to_owned(),
        format!(
            "\"pieces\":[{{\"samples\":2,\"count\":1,\"refused\":0,\"peak_bytes\":{peak},\"before_bytes\":4194304,\"could_save_bytes\":2097152}},\
             {{\"samples\":4,\"count\":1,\"refused\":1,\"peak_bytes\":0,\"before_bytes\":0,\"could_save_bytes\":0}}]"
        ),
        "\"read_back\":[{\"phase\":\"\",\"layers\":\"\",\"copies\":2,\"bytes\":16}]".to_owned(),
        format!("\"line\":{{\"stride\":1,\"bytes\":[4194304,{peak},4194312,4194320]}}"),
    ];
    for part in parts {
        assert!(report.contains(&part), "no {part} in {report}");
    }
    let ends: Vec<_> = report.lines().map(|line| line.split(':').next()).collect();
    assert_eq!(
        ends,
        [
            Some("{\"began\""),
            Some("{\"computes\""),
            Some("{\"ended\"")
        ]
    );
}

#[test]
#[ignore = "a program of the test below"]
fn holds_more_and_more() {
    open();
    for _ in 0..5000 {
        allocate(512).expect("there is room");
    }
}

/// A long program's line stays short, and ends with what it held at the end.
#[test]
fn the_time_line_is_bounded() {
    let Ended { status, report, .. } = run("holds_more_and_more", &[]);
    assert!(status.success());
    let (_, line) = report.split_once("\"line\":").expect("it has a line");
    assert!(line.starts_with("{\"stride\":16,"), "{line}");
    assert!(line.contains(&format!(",{}]", 5000 * 512)), "{line}");
    let (points, _) = line.split_once(']').expect("it has an end");
    assert!(points.split(',').count() <= 513);
}

#[test]
#[ignore = "a program of the test below"]
fn forks() {
    open();
    allocate(512).expect("there is room");
    // SAFETY: the child does nothing but to call the driver and to end.
    match unsafe { libc::fork() } {
        0 => {
            let is_refused = allocate(512) == Err(3);
            // SAFETY: it ends the child.
            unsafe { libc::_exit(i32::from(!is_refused)) };
        }
        child => {
            let mut status = 0;
            // SAFETY: a place for a status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
}

#[test]
fn a_fork_has_no_device() {
    let Ended { status, report, .. } = run("forks", &[]);
    assert!(status.success());
    assert!(report.contains("\"problem\":\"forked\""), "{report}");
    // The child writes no report of its parent's devices.
    assert_eq!(report.matches("\"device\":").count(), 1, "{report}");
}

#[test]
#[ignore = "a program of the test below"]
fn never_ends() {
    open();
    allocate(512).expect("there is room");
    std::thread::sleep(std::time::Duration::from_secs(600));
}

#[test]
fn a_program_is_ended_at_its_limit() {
    let Ended { status, report, .. } = run("never_ends", &[("SIMULATED_CUDA_SECONDS", "1")]);
    assert_eq!(status.code(), Some(124));
    assert!(report.contains("\"problem\":\"time\""), "{report}");
    assert!(report.contains("\"peak_tensor_bytes\":512"), "{report}");
}

#[test]
#[ignore = "a program of the test below"]
fn calls_what_is_not_modelled() {
    open();
    simulated_cuda::status::not_modelled("cuGraphLaunch");
}

#[test]
fn a_missing_function_is_named() {
    let Ended { status, report, .. } = run("calls_what_is_not_modelled", &[]);
    assert_eq!(status.signal(), Some(libc::SIGABRT));
    assert!(
        report.contains("\"problem\":\"not modelled\",\"what\":\"cuGraphLaunch\""),
        "{report}"
    );
}

/// A card larger than what the process may address ends the program, with the reason.
#[test]
fn too_few_addresses_are_named() {
    let memory = (1u64 << 60).to_string();
    let Ended { status, report, .. } = run("never_ends", &[("SIMULATED_CUDA_MEMORY", &memory)]);
    assert_eq!(status.signal(), Some(libc::SIGABRT));
    assert!(report.contains("\"problem\":\"addresses\""), "{report}");
}

#[test]
#[ignore = "a program of the test below"]
fn asks_for_the_card() {
    open();
    let attribute = |number| {
        let mut value = 0;
        // SAFETY: a place for one number.
        assert_eq!(unsafe { cuDeviceGetAttribute(&mut value, number, 0) }, 0);
        value
    };
    // Multiprocessors, threads on each, capability, shared memory of a block.
    assert_eq!(
        [16, 39, 75, 76, 97].map(attribute),
        [128, 1536, 8, 9, 99 << 10]
    );
    let mut bytes = 0;
    // SAFETY: a place for one number.
    assert_eq!(unsafe { cuDeviceTotalMem_v2(&mut bytes, 0) }, 0);
    assert_eq!(bytes as u64, 24_564 * MIB);
    // The rest is the context's.
    assert!(allocate(24_564 * MIB - (600 << 20) + 1).is_err());
    allocate(24_564 * MIB - (600 << 20)).expect("there is room");
}

#[test]
fn the_devices_are_those_of_the_card() {
    let (memory, context) = ((24_564 * MIB).to_string(), (600u64 << 20).to_string());
    let variables = [
        ("SIMULATED_CUDA_MEMORY", memory.as_str()),
        ("SIMULATED_CUDA_CONTEXT", &context),
        ("SIMULATED_CUDA_CAPABILITY", "89"),
        ("SIMULATED_CUDA_MULTIPROCESSORS", "128"),
    ];
    let Ended { status, .. } = run("asks_for_the_card", &variables);
    assert!(status.success());
}

#[test]
#[ignore = "a program of the test below"]
fn needs_pages_that_are_apart() {
    open();
    let stream = 0;
    let take = |bytes: u64| {
        let mut address = 0;
        // SAFETY: a place for one address.
        match unsafe { cuMemAllocAsync(&mut address, bytes as usize, stream) } {
            0 => Some(address),
            _ => None,
        }
    };
    let pieces: Vec<u64> = (0..8)
        .map(|_| take(16 * MIB).expect("there is room"))
        .collect();
    // One of several blocks in a segment of 16 MiB.
    for address in pieces.iter().step_by(2) {
        assert_eq!(cuMemFreeAsync(*address, stream), 0);
    }
    let small = take(512).expect("there is room");
    let joined = take(62 * MIB);
    let joins = std::env::var("SIMULATED_CUDA_JOINS").is_ok_and(|joins| joins == "1");
    assert_eq!(joined.is_some(), joins);
    if let Some(joined) = joined {
        // The small block's page stays; all else was used, so that no more is left.
        assert!(take(MIB).is_some() && take(MIB).is_none());
        assert_eq!(cuMemFreeAsync(joined, stream), 0);
        assert!(take(62 * MIB).is_some());
    }
    for address in pieces.iter().skip(1).step_by(2).chain([&small]) {
        assert_eq!(cuMemFreeAsync(*address, stream), 0);
    }
    assert_eq!(cuStreamSynchronize(stream), 0);
}

/// A pool whose free pages lie apart can use them together, or not.
#[test]
fn free_pages_that_are_apart_are_joined_where_that_is_asked_for() {
    // Room for the context and for 128 MiB.
    let memory = (144 * MIB).to_string();
    for joins in ["0", "1"] {
        let variables = [
            ("SIMULATED_CUDA_MEMORY", memory.as_str()),
            ("SIMULATED_CUDA_JOINS", joins),
        ];
        let Ended { status, report, .. } = run("needs_pages_that_are_apart", &variables);
        assert!(status.success(), "{joins}: {report}");
    }
}
