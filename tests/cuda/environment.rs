//! The environment checker with a driver, and the smoke test on a device.

use candle_headroom::Environment;
use candle_headroom::environment::{Finding, Report, Requirement, facts};

use crate::gpu::{MIB, gpu, simulated};
use crate::simulator::Simulator;

fn has(report: &Report, code: &str) -> bool {
    report
        .findings()
        .iter()
        .any(|finding| finding.code.id == code)
}

fn smoke(ordinal: usize) -> Finding {
    Environment::new().smoke_test(ordinal as u32)
}

#[test]
fn a_machine_that_runs_this_suite_is_fit() {
    let gpu = gpu();
    let report = Environment::new().check();
    assert!(report.is_fit_for(Requirement::CudaInference), "{report}");
    let training = Requirement::cuda_training(64 * MIB);
    assert!(report.is_fit_for(training), "{report}");
    assert!(!report.is_fit_for(Requirement::cuda_training(u64::MAX)));
    for code in ["HR-300", "HR-312", "HR-400"] {
        assert!(has(&report, code), "{code}\n{report}");
    }
    let finding = smoke(gpu.ordinal);
    assert_eq!(finding.code.id, "HR-900", "{}", finding.seen);
}

/// Kernels of a newer toolkit than the driver: the checker reports it, and the first kernel fails in that way.
#[test]
fn a_driver_older_than_the_kernels() {
    let Some((gpu, _)) = simulated(2) else {
        return;
    };
    Simulator::set_driver_version(12_080);
    let report = Environment::new().check();
    Simulator::set_checks_ptx(true);
    let finding = smoke(gpu.ordinal);
    Simulator::set_checks_ptx(false);
    Simulator::set_driver_version(13_000);
    assert!(
        has(&report, "HR-308") && !report.is_fit_for(Requirement::CudaInference),
        "{report}"
    );
    assert_eq!(finding.code.id, "HR-901", "{}", finding.seen);
    assert!(
        finding.next_step.contains("update the driver"),
        "{}",
        finding.next_step
    );
}

#[test]
fn a_neighbour_is_named() {
    let Some((gpu, simulator)) = simulated(3) else {
        return;
    };
    let report = Environment::new().check();
    let total = report.gpus()[gpu.ordinal].memory_total.unwrap();
    simulator.neighbour(total / 4 * 3);
    let report = Environment::new().check();
    simulator.neighbour(0);
    let about = report
        .findings()
        .iter()
        .find(|finding| finding.code.id == "HR-218");
    let about = about.unwrap_or_else(|| panic!("{report}"));
    assert_eq!(about.gpu, Some(gpu.ordinal as u32));
    assert!(
        about.seen.contains("process 2147483646 holds"),
        "{}",
        about.seen
    );
}

#[test]
fn a_smoke_test_that_fails_says_where_and_what_to_do() {
    let Some((gpu, simulator)) = simulated(4) else {
        return;
    };
    simulator.fault_at_launch(1, 700, true);
    let finding = smoke(gpu.ordinal);
    simulator.clear_fault();
    assert_eq!(finding.code.id, "HR-901");
    assert!(
        finding.seen.contains("CUDA_ERROR_ILLEGAL_ADDRESS"),
        "{}",
        finding.seen
    );
    assert!(
        finding.next_step.contains("compute-sanitizer"),
        "{}",
        finding.next_step
    );
    let finding = smoke(99);
    assert!(
        finding.seen.contains("cuDeviceGet returns 101"),
        "{}",
        finding.seen
    );
}

#[test]
fn every_status_is_spelled_and_numbered_as_in_the_bindings() {
    use candle_core::cuda_backend::cudarc::driver::sys::CUresult::*;
    #[rustfmt::skip]
    let driver = [
        CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_STUB_LIBRARY,
        CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_NO_DEVICE,
        CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_DEVICE_NOT_LICENSED, CUDA_ERROR_INVALID_IMAGE,
        CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_INVALID_PTX,
        CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_JIT_COMPILER_NOT_FOUND, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        CUDA_ERROR_JIT_COMPILATION_DISABLED, CUDA_ERROR_CONTAINED, CUDA_ERROR_INVALID_SOURCE,
        CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
        CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_ASSERT, CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUDA_ERROR_INVALID_PC, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_TENSOR_MEMORY_LEAK, CUDA_ERROR_NOT_PERMITTED,
        CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, CUDA_ERROR_MPS_CONNECTION_FAILED, CUDA_ERROR_MPS_RPC_FAILURE,
        CUDA_ERROR_MPS_SERVER_NOT_READY, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
        CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, CUDA_ERROR_MPS_CLIENT_TERMINATED, CUDA_ERROR_UNKNOWN,
    ];
    // 919 is newer than CUDA 13.0, so not in the bindings of a build with its toolkit.
    let listed = facts::cuda_statuses().filter(|status| status.number != 919);
    let listed: Vec<_> = listed
        .map(|status| (status.name.to_owned(), status.number))
        .collect();
    assert_eq!(
        driver.map(|code| (format!("{code:?}"), code as u32))[..],
        listed
    );
}
