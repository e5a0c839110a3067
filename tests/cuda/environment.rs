//! The environment checker with a driver, and the smoke test on a device.

use candle_headroom::Environment;
use candle_headroom::environment::{Finding, Report, Requirement};

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
