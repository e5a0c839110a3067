//! What a machine is fit for, and the report as data.

use candle_core::DeviceLocation;
use candle_headroom::{ByteSize, Environment, Requirement, Severity};

use crate::machine::{Machine, codes};

const CUDA: Requirement = Requirement::CudaInference;

fn training(gib: u64) -> Requirement {
    Requirement::CudaTraining {
        bytes: ByteSize::gib(gib).as_u64(),
    }
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
fn nothing_known_of_cuda_is_not_fit() {
    let machine = Machine::healthy().answers("hang.cuInit=1\nhang.nvmlInit_v2=1");
    let report = machine
        .environment()
        .time_limit(std::time::Duration::from_millis(300))
        .check();
    let obstacles = report.obstacles(CUDA);
    assert_eq!(obstacles[0].code.id, "HR-912", "{report}");
}

#[test]
fn kernels_that_fit_are_told() {
    let report = Machine::healthy()
        .kernels("mine", ".version 9.0\n.target sm_80\n")
        .check();
    assert!(codes(&report).contains(&"HR-312"), "{report}");
}

/// A build with `cuda` judges its own kernels, whatever they were compiled for: a later GPU runs none of those that are bound to one
/// kind, and an earlier one none at all.
#[cfg(feature = "cuda")]
#[test]
fn kernels_of_this_build_do_not_run_on_an_old_gpu() {
    let report = Machine::healthy().answers("major=3\nminor=0").check();
    assert!(codes(&report).contains(&"HR-309"), "{report}");
    assert!(!report.is_fit_for(CUDA));
}

#[test]
fn the_smoke_test_works_on_the_cpu_and_fails_in_words() {
    let finding = Environment::new().smoke_test(DeviceLocation::Cpu);
    assert_eq!(finding.code.id, "HR-900", "{}", finding.seen);
    let finding = Environment::new().smoke_test(DeviceLocation::Metal { gpu_id: 0 });
    assert_eq!(finding.code.id, "HR-901");
    assert!(finding.seen.contains("opening"), "{}", finding.seen);
    let mut report = Machine::healthy().check();
    report.extend([finding]);
    assert_eq!(codes(&report)[0], "HR-901", "the worst first");
}

#[test]
fn the_json_has_a_fixed_shape() {
    let report = Machine::healthy().answers("persistence=0").check();
    let json = serde_json::to_value(&report).unwrap();
    let keys = |value: &serde_json::Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        keys(&json),
        ["findings", "gpus", "schema", "summary", "version"]
    );
    assert_eq!(json["schema"], 1);
    let finding = &json["findings"][0];
    assert_eq!(
        keys(finding),
        [
            "code",
            "command",
            "gpu",
            "leads_to",
            "next_step",
            "prevents_cuda",
            "seen",
            "severity",
            "title"
        ]
    );
    assert_eq!(
        (&finding["code"], &finding["severity"], &finding["gpu"]),
        (&"HR-205".into(), &"warning".into(), &0.into())
    );
    assert_eq!(
        keys(&json["gpus"][0]),
        [
            "compute_capability",
            "index",
            "memory_free",
            "memory_total",
            "name",
            "pci",
            "serial",
            "uuid",
            "visible"
        ]
    );
}

#[test]
fn a_redacted_report_names_nobody() {
    let machine = Machine::healthy()
        .answers("persistence=0")
        .variable("USER", "alice")
        .variable("HOSTNAME", "node17.example")
        .variable("CUDA_HOME", "/home/alice/cuda")
        .variable("CUDA_VISIBLE_DEVICES", "GPU-1b2c3d4e,GPU-ffff0000")
        .variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4G for alice on node17.example, board 1650423000000")
        .file("/dev/kmsg", "NVRM: Xid (PCI:0000:18:00): 31, pid=9, name=secret, GPU-1b2c3d4e-0000-0002-0003-0123456789ab");
    let report = machine.check();
    let open = serde_json::to_string(&report).unwrap();
    let redacted = report.redacted();
    for text in [
        serde_json::to_string(&redacted).unwrap(),
        redacted.to_string(),
        format!("{redacted:?}"),
    ] {
        for private in [
            "alice",
            "node17",
            "1b2c3d4e",
            "ffff0000",
            "1650423000000",
            "secret",
            "/home",
        ] {
            assert!(open.contains(private), "{private} was there");
            assert!(!text.contains(private), "{private}\n{text}");
        }
    }
    assert_eq!(codes(&redacted), codes(&report));
}

#[test]
fn what_differs_in_the_gpu_alone_is_one_line_for_a_terminal_and_many_findings() {
    let report = Machine::healthy().answers("gpus=3\npersistence=0").check();
    assert!(
        report
            .to_string()
            .contains("GPUs 0, 1, 2: persistence mode is off"),
        "{report}"
    );
    let found = codes(&report);
    assert_eq!(found.iter().filter(|code| **code == "HR-205").count(), 3);
}

#[test]
fn colours_are_added_on_request_alone() {
    let report = Machine::container().check();
    assert!(!report.to_string().contains('\u{1b}'));
    let coloured = report.coloured().to_string();
    assert!(coloured.contains("\u{1b}[1;31mfailure"));
    let mut plain = coloured;
    for code in [
        "\u{1b}[32m",
        "\u{1b}[36m",
        "\u{1b}[33m",
        "\u{1b}[1;31m",
        "\u{1b}[0m",
    ] {
        plain = plain.replace(code, "");
    }
    assert_eq!(plain, report.to_string());
}
