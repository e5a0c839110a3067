//! The report as JSON, redacted, and for a terminal.

use crate::machine::{Machine, codes};

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
            "ordinal",
            "prevents_cuda",
            "seen",
            "severity",
            "title"
        ]
    );
    assert_eq!(
        (&finding["code"], &finding["severity"], &finding["gpu"]),
        (&"HR-205".into(), &"note".into(), &0.into())
    );
    assert_eq!(
        keys(&json["gpus"][0]),
        [
            "compute_capability",
            "index",
            "memory_free",
            "memory_total",
            "name",
            "ordinal",
            "pci",
            "serial",
            "uuid",
            "visible"
        ]
    );
}

#[test]
fn a_redacted_report_has_no_private_words() {
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
fn findings_that_differ_only_in_the_gpu_are_one_line_in_a_terminal() {
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
fn colours_are_added_only_on_request() {
    let report = Machine::container().check();
    assert!(!report.to_string().contains('\u{1b}'));
    let coloured = format!("{report:#}");
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

/// Redacts a text that stands in a report's evidence, twice: the second time must change nothing.
fn redact(machine: impl Fn() -> Machine, text: &str) -> String {
    let once = |text: &str| {
        let name = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
        let report = machine().variable(name, text).check().redacted();
        let mut findings = report.findings().iter();
        let seen = &findings
            .find(|finding| finding.code.id == "HR-611")
            .unwrap()
            .seen;
        seen.strip_prefix(&format!("{name}=")).unwrap().to_owned()
    };
    let redacted = once(text);
    assert_eq!(once(&redacted), redacted, "twice is the same");
    redacted
}

#[test]
fn what_identifies_is_removed() {
    let machine = || Machine::healthy().variable("USER", "alice");
    for (before, after) in [
        ("x GPU-1b2c3d4e-0001-0002-0003-0123456789ab", "x GPU-<uuid>"),
        ("A=GPU-1b2c3d,0", "A=GPU-<uuid>,0"),
        ("uuid 1b2c3d4e-0001-0002-0003-0123456789ab.", "uuid <uuid>."),
        ("CUDA_HOME=/home/alice/cuda", "CUDA_HOME=<path>"),
        (
            "/home/bob/lib/libcudart.so.12 is 12.4",
            "<path>/libcudart.so.12 is 12.4",
        ),
        (
            "no /dev/nvidia0, /usr/local/cuda/lib64",
            "no /dev/nvidia0, /usr/local/cuda/lib64",
        ),
        ("asked by alice, not malice", "asked by <user>, not malice"),
        ("board 1650423000000", "board <serial>"),
        (
            "pid=7, name=secret-project, fault",
            "pid=7, name=<name>, fault",
        ),
        (
            "pid=7, name=my secret project, fault",
            "pid=7, name=<name>, fault",
        ),
        ("name=the last one", "name=<name>"),
        ("/run/media/bob/x and /usr/local/acme", "<path> and <path>"),
        ("/usr/local/cuda-secret/lib64", "<path>"),
        ("/usr/local/cuda-12.4/lib64", "/usr/local/cuda-12.4/lib64"),
        (
            "4 of 16 lanes, 12.5 GiB and/or 3",
            "4 of 16 lanes, 12.5 GiB and/or 3",
        ),
    ] {
        assert_eq!(redact(machine, before), after);
    }
}

#[test]
fn names_and_folders_come_from_variables_and_the_host() {
    let machine = || {
        Machine::healthy()
            .file("/proc/sys/kernel/hostname", "node17\n")
            .variable("USER", "nvidia")
            .variable("HOME", "/home/bob")
            .variable("CUDA_HOME", "/srv/bob s own/cuda")
            .variable("CUDA_PATH", "toolkits/acme")
    };
    for (before, after) in [
        ("A=/srv/bob s own/cuda", "A=<path>"),
        ("A: /srv/bob s own/cuda, PATH", "A: <path>, PATH"),
        ("A=toolkits/acme", "A=<path>"),
        ("bob on node17", "<user> on <host>"),
        (
            "/sys/module/nvidia and nvidia-smi",
            "/sys/module/nvidia and nvidia-smi",
        ),
        ("/usr/local/cuda/bin/nvcc", "/usr/local/cuda/bin/nvcc"),
    ] {
        assert_eq!(redact(machine, before), after);
    }
}
