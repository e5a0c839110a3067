//! What a program asks for is counted exactly, and alike whether or not devices compute: launches, calls and waits. Counts are of a whole process,
//! so each test runs its program, a function below, in a process of its own.

mod support;

use std::ffi::CStr;

use simulated_cuda::counts::*;
use simulated_cuda::driver::context_stack::*;
use simulated_cuda::driver::event::*;
use simulated_cuda::driver::stream::*;
use support::counting::*;
use support::kernels::{kernel, launch};
use support::out;
use support::process::{Ended, run};

/// Writes a number to each thread's element of the first buffer; the second one is not used.
const SET: &CStr = c"
.version 9.0
.target sm_90
.address_size 64
.visible .entry set(.param .u64 to, .param .u64 from, .param .u64 number)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [number];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    st.global.u32 [%rd4], %rd2;
    ret;
}
";

#[test]
#[ignore = "a program of the test below"]
fn launches() {
    open();
    let set = kernel(SET, c"set");
    let (many, one, nine) = (allocate(4096), allocate(8), allocate(9));
    let statuses = [
        // Both buffers to their ends.
        launch(set, 2, 32, &[many, many + 1024, 7]),
        launch(set, 1, 1, &[one, one + 4, 7]),
        launch(set, 1, 1, &[one, 0, 7]),
        // More than one element, without a buffer, and not a launch.
        launch(set, 1, 1, &[nine, one, 7]),
    ];
    assert_eq!(statuses, [0; 4]);
    assert_eq!(launch(set, 0, 1, &[one, 0, 7]), 1);
    phase(c"backward", || {
        assert_eq!(launch(set, 1, 1, &[one, 0, 7]), 0)
    });
    assert_eq!(cuCtxSynchronize(), 0);
}

#[test]
fn launches_are_counted_by_kernel_with_those_of_one_element_apart() {
    let counts = in_every_mode("launches");
    let bytes = 4096 + 3072 + 8 + 4 + 8 + 9 + 8;
    let of_kernel = |count, bytes, one| {
        let launches = format!("\"count\":{count},\"bytes\":{bytes},\"one_element\":{one}");
        format!("{launches},\"kernels\":{{\"set\":{{{launches}}}}}")
    };
    has(
        &counts,
        "all",
        &[&of_kernel(5, bytes + 8, 3), "\"cuLaunchKernel\":6"],
    );
    has(
        &counts,
        "backward",
        &[&of_kernel(1, 8, 1), "\"cuLaunchKernel\":1"],
    );
    assert!(counts.contains(&of_kernel(4, bytes, 2)), "{counts}");
}

#[test]
#[ignore = "a program of the test below"]
fn accesses() {
    open();
    let set = kernel(SET, c"set");
    let many = allocate(4096);
    assert_eq!(launch(set, 2, 32, &[many, 0, 7]), 0);
    assert_eq!(launch(set, 1, 5, &[many, 0, 7]), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    let is_executed = std::env::var("SIMULATED_CUDA_MODE").is_ok_and(|mode| mode != "allocate");
    let [bytes, none] =
        [c"set", c"other"].map(|name| unsafe { simulated_cuda_accessed(name.as_ptr()) });
    assert_eq!((bytes, none), (u64::from(is_executed) * 4 * 69, 0));
}

#[test]
fn bytes_that_kernels_access_are_counted_where_they_are_executed() {
    in_every_mode("accesses");
}

#[test]
#[ignore = "a program of the test below"]
fn waits() {
    open();
    let event = out(|place| unsafe { cuEventCreate(place, 2) });
    let statuses = [
        cuEventRecord(event, 0),
        cuEventRecordWithFlags(event, 0, 0),
        cuStreamWaitEvent(0, event, 0),
        cuEventQuery(event),
        cuEventQuery(event),
        cuEventQuery(event),
        cuEventSynchronize(event),
        cuStreamSynchronize(0),
        cuStreamSynchronize(0),
        cuCtxSynchronize(),
        cuEventDestroy_v2(event),
        // A call that fails is a call.
        cuEventDestroy_v2(event),
    ];
    assert_eq!(statuses, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 400]);
    for _ in 0..5 {
        let context = out(|place| unsafe { cuCtxGetCurrent(place) });
        assert_eq!(cuCtxSetCurrent(context), 0);
    }
}

#[test]
fn events_and_synchronizations_are_counted_and_contexts_apart() {
    let counts = in_every_mode("waits");
    let parts = [
        "\"calls\":{\"count\":13,\"context\":10,\"functions\":{\"cuCtxGetCurrent\":5,\"cuCtxSetCurrent\":5,\"cuCtxSynchronize\":1,\
         \"cuEventCreate\":1,\"cuEventDestroy_v2\":2,\"cuEventQuery\":3,\"cuEventRecord\":1,\"cuEventRecordWithFlags\":1,\
         \"cuEventSynchronize\":1,\"cuStreamSynchronize\":2,\"cuStreamWaitEvent\":1}}",
        "\"events\":{\"created\":1,\"destroyed\":2,\"recorded\":2,\"waited_for\":1,\"queried\":3,\"timed\":0}",
        "\"synchronizations\":{\"count\":4,\"cuStreamSynchronize\":2,\"cuEventSynchronize\":1,\"cuCtxSynchronize\":1,\
         \"blocking_copies\":0",
    ];
    has(&counts, "all", &parts);
}

#[test]
#[ignore = "a program of the test below"]
fn threads() {
    open();
    let set = kernel(SET, c"set");
    let many = allocate(4096);
    let context = out(|place| unsafe { cuCtxGetCurrent(place) });
    assert_eq!(simulated_cuda_counts_reset(), 0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                assert_eq!(cuCtxSetCurrent(context), 0);
                phase(c"together", || {
                    for _ in 0..500 {
                        assert_eq!(launch(set, 1, 32, &[many, 0, 1]), 0);
                    }
                });
            });
        }
    });
}

#[test]
fn threads_lose_no_count() {
    let counts = in_every_mode("threads");
    let launches = format!(
        "\"set\":{{\"count\":4000,\"bytes\":{},\"one_element\":0}}",
        4000 * 4096
    );
    has(
        &counts,
        "together",
        &[&launches, "\"functions\":{\"cuLaunchKernel\":4000}"],
    );
}

#[test]
#[ignore = "a program of the test below"]
fn switches() {
    open();
    allocate(512);
    assert!(read().ends_with("\"phases\":{}}"), "it is off: {}", read());
    assert_eq!(simulated_cuda_set_counts(true), 0);
    allocate(512);
    assert!(read().contains("\"pool\":{\"count\":1,\"bytes\":512}"));
    assert_eq!(simulated_cuda_set_counts(false), 0);
    allocate(512);
    assert!(read().contains("\"pool\":{\"count\":1,\"bytes\":512}"));
    assert_eq!(simulated_cuda_counts_reset(), 0);
    assert!(read().ends_with("\"phases\":{}}"));
    // Room for a part of it.
    let mut text = [1u8; 8];
    unsafe { simulated_cuda_counts(text.as_mut_ptr().cast(), text.len()) };
    assert_eq!(&text, b"{\"all\":\0");
}

#[test]
fn a_program_switches_counting_itself() {
    let Ended {
        status,
        report,
        stderr,
    } = run("switches", &[]);
    assert!(status.success(), "{stderr}");
    assert!(!report.contains("\"counts\""), "{report}");
}

/// A new entry point must count itself too: by running its body with `answer`.
#[test]
fn every_function_of_libcuda_counts_its_calls() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/driver");
    let mut found = 0;
    for file in std::fs::read_dir(folder).expect("the sources are there") {
        let file = file.expect("the sources are there").path();
        let text = std::fs::read_to_string(file).expect("sources are text");
        for part in text.split("#[unsafe(no_mangle)]").skip(1) {
            let body = part.split("\n}\n").next().unwrap_or(part);
            let line = part.lines().nth(1).unwrap_or(part);
            assert!(
                body.contains("    answer"),
                "it does not count itself: {line}"
            );
            found += 1;
        }
    }
    assert!(found > 90, "{found}");
}
