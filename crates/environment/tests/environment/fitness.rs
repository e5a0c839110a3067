//! What a machine is fit for.

use candle_headroom_environment::ByteSize;
use candle_headroom_environment::{Requirement, Severity};

use crate::machine::{Machine, codes};

const CUDA: Requirement = Requirement::CudaInference;

fn training(gib: u64) -> Requirement {
    Requirement::cuda_training(ByteSize::gib(gib).as_u64())
}

fn obstacles(machine: &Machine, requirement: Requirement) -> Vec<&'static str> {
    let obstacles = machine.check().obstacles(requirement);
    obstacles.iter().map(|finding| finding.code.id).collect()
}

#[test]
fn a_healthy_machine_is_fit_for_what_its_memory_holds() {
    let machine = Machine::healthy();
    let report = machine.check();
    assert!(
        report.is_fit_for(Requirement::Cpu)
            && report.is_fit_for(CUDA)
            && report.is_fit_for(training(140))
    );
    assert_eq!(obstacles(&machine, training(141)), ["HR-910"]);
    machine.set("status.nvmlDeviceGetMemoryInfo=3\nstatus.nvmlDeviceGetMemoryInfo_v2=3");
    assert_eq!(obstacles(&machine, CUDA), [""; 0]);
    assert_eq!(obstacles(&machine, training(1)), ["HR-911"]);
}

#[test]
fn a_machine_without_a_gpu_is_in_order_but_not_fit_for_cuda() {
    let machine = Machine::plain();
    assert!(machine.check().worst() == Severity::Note);
    assert_eq!(obstacles(&machine, Requirement::Cpu), [""; 0]);
    assert_eq!(obstacles(&machine, CUDA), ["HR-101"]);
    assert_eq!(obstacles(&machine, training(1)), ["HR-101"]);
}

#[test]
fn one_sick_gpu_of_two_is_no_obstacle_until_the_other_is_hidden() {
    let machine = Machine::healthy().answers("gpus=2\n0.ecc.volatile=3\n1.memory.used=0");
    assert_eq!(machine.check().worst(), Severity::Failure);
    assert_eq!(obstacles(&machine, CUDA), [""; 0]);
    assert_eq!(obstacles(&machine, training(141)), [""; 0]);
    let machine = machine.variable("CUDA_VISIBLE_DEVICES", "0");
    assert_eq!(obstacles(&machine, CUDA), ["HR-208"]);
}

#[test]
fn a_machine_whose_cuda_is_unknown_is_not_fit() {
    let machine = Machine::healthy().answers("hang.cuInit=1\nhang.nvmlInit_v2=1");
    let report = machine
        .environment()
        .time_limit(std::time::Duration::from_secs(2))
        .check();
    let obstacles = report.obstacles(CUDA);
    assert_eq!(obstacles[0].code.id, "HR-912", "{report}");
}

#[test]
fn kernels_that_fit_are_reported() {
    let report = Machine::healthy()
        .kernels("mine", ".version 9.0\n.target sm_80\n")
        .check();
    assert!(codes(&report).contains(&"HR-312"), "{report}");
}

/// A build with `cuda` judges its own kernels: an older GPU runs none of them.
#[cfg(feature = "cuda")]
#[test]
fn kernels_of_this_build_do_not_run_on_an_old_gpu() {
    let report = Machine::healthy().answers("major=3\nminor=0").check();
    assert!(codes(&report).contains(&"HR-309"), "{report}");
    assert!(!report.is_fit_for(CUDA));
}

#[test]
fn the_smoke_test_works_and_describes_failures() {
    let machine = Machine::healthy();
    let smoke = || machine.environment().smoke_test(0);
    let finding = smoke();
    assert_eq!(finding.code.id, "HR-900", "{}", finding.seen);
    assert_eq!(finding.ordinal, Some(0));
    machine.set("wrong=1");
    let finding = smoke();
    assert_eq!(finding.code.id, "HR-902", "{}", finding.seen);
    machine.set("wrong=0");
    for function in [
        "cuInit",
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuMemAlloc_v2",
        "cuMemcpyHtoD_v2",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuLaunchKernel",
        "cuCtxSynchronize",
        "cuMemcpyDtoH_v2",
    ] {
        machine.set(&format!("status.{function}=700"));
        let finding = smoke();
        machine.set(&format!("status.{function}=0"));
        assert_eq!(finding.code.id, "HR-901", "{function}");
        let seen = format!("cuda:0: {function} returns 700 CUDA_ERROR_ILLEGAL_ADDRESS");
        assert!(finding.seen.starts_with(&seen), "{}", finding.seen);
        assert!(finding.next_step.contains("compute-sanitizer"));
        let mut report = machine.check();
        report.extend([finding]);
        assert_eq!(codes(&report)[0], "HR-901", "the worst first");
    }
    assert_eq!(smoke().code.id, "HR-900");
}

/// The build's kernels have to load as well.
#[test]
fn the_smoke_test_is_launched_as_the_kernels_are() {
    let machine = Machine::healthy().kernels("mine", ".version 9.1\n.target sm_90a\n");
    let smoke = || machine.environment().smoke_test(0).code.id;
    assert_eq!(smoke(), "HR-900");
    machine.set("newest.ptx=9.0");
    assert_eq!(smoke(), "HR-901");
    machine.set("newest.ptx=9.1");
    assert_eq!(smoke(), "HR-900");
}

#[test]
fn a_smoke_test_that_hangs_or_finds_no_library_has_failed() {
    let machine = Machine::healthy().answers("hang.cuCtxSynchronize=1");
    let limit = std::time::Duration::from_secs(1);
    let hung = machine.environment().time_limit(limit).smoke_test(0);
    assert_eq!(hung.code.id, "HR-901");
    assert!(hung.seen.contains("did not finish in time"), "{hung:?}");
    assert!(hung.command.contains("dmesg"), "{hung:?}");
    let missing = Machine::plain().environment().smoke_test(0);
    assert_eq!(missing.code.id, "HR-901");
    assert!(missing.seen.contains("libcuda.so.1"), "{missing:?}");
}

/// The UUIDs of the stand-in's CUDA devices.
const SAME_UUID: &str = "gpus=2\n0.uuid=GPU-00000000-0000-0000-0000-000000000000\n1.uuid=GPU-01010101-0101-0101-0101-010101010101";

#[test]
fn failed_work_counts_against_its_own_device_only() {
    let failed_on = |ordinal, machine: &Machine| {
        let finding = Machine::plain().environment().smoke_test(ordinal);
        assert_eq!(finding.code.id, "HR-901");
        let mut report = machine.check();
        report.extend([finding]);
        report
    };
    // One of two, and one that is not known to be any of them.
    let report = failed_on(1, &Machine::healthy().answers(SAME_UUID));
    assert!(report.is_fit_for(CUDA), "{report}");
    assert!(report.is_fit_for(Requirement::Cpu));
    let report = failed_on(1, &Machine::healthy());
    assert!(!report.is_fit_for(CUDA), "{report}");
}

#[test]
fn memory_of_a_divided_gpu_is_not_counted() {
    let machine = Machine::healthy().answers("mig=1");
    assert_eq!(obstacles(&machine, training(1)), ["HR-911"]);
    assert_eq!(machine.check().gpus()[0].memory_total, Some(141 << 30));
}

#[test]
fn a_gpu_that_shares_the_host_s_memory_has_the_host_s_free_memory() {
    let untold =
        "integrated=1\nstatus.nvmlDeviceGetMemoryInfo=3\nstatus.nvmlDeviceGetMemoryInfo_v2=3";
    let machine = Machine::healthy().answers(SAME_UUID).answers(untold);
    assert_eq!(obstacles(&machine, training(12)), [""; 0]);
    assert_eq!(obstacles(&machine, training(13)), ["HR-910"]);
    let machine = machine.without(&format!("{}/libnvidia-ml.so.1", crate::machine::LIBRARIES));
    assert_eq!(
        obstacles(&machine, training(12)),
        [""; 0],
        "CUDA alone tells of it"
    );
}

#[test]
fn a_momentary_slowdown_is_no_failure() {
    let report = Machine::healthy().answers("clocks=8").check();
    assert_eq!(report.worst(), Severity::Warning);
    assert!(report.is_fit_for(CUDA));
    assert!(
        codes(&report).contains(&"HR-200"),
        "what the GPU is: {report}"
    );
}
