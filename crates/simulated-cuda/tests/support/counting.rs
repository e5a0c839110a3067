//! Programs whose calls are counted, and what they are compared with.

use std::ffi::CStr;

use simulated_cuda::counts::*;
use simulated_cuda::driver::allocation::*;
use simulated_cuda::driver::context::*;
use simulated_cuda::driver::context_stack::*;
use simulated_cuda::driver::device_query::*;
use simulated_cuda::marks::*;

use super::out;
use super::process::{Ended, run};

/// Opens device 0, and forgets the calls that this took.
pub fn open() {
    assert_eq!(cuInit(0), 0);
    let context = out(|place| unsafe { cuDevicePrimaryCtxRetain(place, 0) });
    assert_eq!(cuCtxSetCurrent(context), 0);
    assert_eq!(simulated_cuda_counts_reset(), 0);
}

pub fn allocate(bytes: usize) -> u64 {
    out(|place| unsafe { cuMemAllocAsync(place, bytes, 0) })
}

pub fn phase(name: &CStr, body: impl FnOnce()) {
    unsafe { simulated_cuda_enter(1, name.as_ptr(), 0) };
    body();
    simulated_cuda_leave();
}

/// The counts, as a program reads them.
pub fn read() -> String {
    let needed = unsafe { simulated_cuda_counts(std::ptr::null_mut(), 0) };
    let mut text = vec![0u8; needed];
    unsafe { simulated_cuda_counts(text.as_mut_ptr().cast(), needed) };
    assert_eq!(text.pop(), Some(0));
    String::from_utf8(text).expect("JSON is UTF-8")
}

/// The line of a report that has the counts, without the process's number.
pub fn line(report: &str) -> String {
    let mut lines = report.lines();
    let line = lines.find_map(|line| line.split_once(",\"counts\":"));
    let (_, counts) = line.unwrap_or_else(|| panic!("no counts in {report}"));
    counts.strip_suffix('}').expect("an object").to_owned()
}

/// Runs a program in each mode, which count the same, and returns that.
pub fn in_every_mode(program: &str) -> String {
    let [one, others @ ..] = ["execute", "allocate", "sampled"].map(|mode| {
        let variables = [
            ("SIMULATED_CUDA_MODE", mode),
            ("SIMULATED_CUDA_COUNTS", "1"),
        ];
        let Ended {
            status,
            report,
            stderr,
        } = run(program, &variables);
        assert!(status.success(), "{mode}: {stderr}");
        line(&report)
    });
    others.iter().for_each(|other| assert_eq!(&one, other));
    one
}

/// The counts of one phase, or of all.
pub fn of<'a>(counts: &'a str, phase: &str) -> &'a str {
    let name = match phase {
        "all" => "\"all\":".to_owned(),
        phase => format!("\"{phase}\":{{\"launches\""),
    };
    let (_, rest) = counts
        .split_once(&name)
        .unwrap_or_else(|| panic!("no {phase} in {counts}"));
    let end = rest
        .find("\"blocking_copies\"")
        .expect("each phase ends so");
    &rest[..end + rest[end..].find('}').expect("an object")]
}

pub fn has(counts: &str, phase: &str, parts: &[&str]) {
    let counts = of(counts, phase);
    for part in parts {
        assert!(counts.contains(part), "{phase}: no {part} in {counts}");
    }
}
