//! What the checker reads in clock bits, in PTX and in CUDA_VISIBLE_DEVICES.

use candle_headroom_environment::Report;

use crate::machine::{Machine, codes};

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
