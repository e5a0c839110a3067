//! Kernels that never end.

mod support;

use std::ffi::CStr;

use simulated_cuda::driver::context_stack::*;
use support::counting::open;
use support::kernels::{kernel, launch};
use support::process::{Ended, run};

/// A loop, and one whose threads meet at a barrier in each round.
const ENDLESS: &CStr = c"
.version 9.0
.target sm_90
.address_size 64
.visible .entry spins(.param .u64 unused)
{
$again:
    bra.uni $again;
}
.visible .entry meets(.param .u64 unused)
{
$again:
    bar.sync 0;
    bra.uni $again;
}
";

#[test]
#[ignore = "a program of the test below"]
fn never_end() {
    open();
    let name = std::env::var("KERNEL").expect("it is set");
    let name = std::ffi::CString::new(name).expect("a name");
    let endless = kernel(ENDLESS, &name);
    assert_eq!(launch(endless, 1, 64, &[0]), 0, "the fault comes later");
    assert_eq!(cuCtxSynchronize(), 702);
    assert_eq!(launch(endless, 1, 64, &[0]), 702, "it is sticky");
}

#[test]
fn an_endless_loop_ends_with_an_error_that_names_the_kernel() {
    for name in ["spins", "meets"] {
        let variables = [
            ("SIMULATED_CUDA_MODE", "execute"),
            ("SIMULATED_CUDA_INSTRUCTIONS", "10000"),
            ("KERNEL", name),
        ];
        let Ended {
            status,
            report,
            stderr,
        } = run("never_end", &variables);
        assert!(status.success(), "{stderr}");
        let text = format!("kernel {name}: an endless loop, after 10000 instructions of a warp");
        assert!(stderr.contains(&text), "{stderr}");
        let problem = format!("\"problem\":\"kernel\",\"what\":\"{text}");
        assert!(report.contains(&problem), "{report}");
    }
}
