//! Truncated, binary and huge files, and circular links: the check still returns a report.

use std::fs;

use candle_headroom_environment::Environment;
use candle_headroom_environment::Severity;
use candle_headroom_environment::facts::Version;
use proptest::prelude::*;

use crate::machine::{LIBRARIES, Machine, codes};

/// All files that the probes read the contents of.
const FILES: [&str; 14] = [
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/mounts",
    "/proc/sys/kernel/osrelease",
    "/proc/self/cgroup",
    "/proc/1/cgroup",
    "/sys/fs/cgroup/memory.max",
    "/sys/module/nvidia/version",
    "/proc/driver/nvidia/version",
    "/sys/bus/pci/devices/0000:18:00.0/vendor",
    "/dev/kmsg",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d/cuda.conf",
    "/usr/local/cuda-13.0/version.json",
];

/// Lines that look as if they belonged there, and others.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop::collection::vec(any::<u8>(), 0..300);
    let words = prop::sample::select(vec![
        "MemTotal: ",
        "MemAvailable:",
        "SwapTotal: 99999999999999999999 kB\n",
        "18446744073709551615 kB\n",
        "0::/",
        "../../..\n",
        "NVRM: Xid (PCI:0000:18:00): ",
        "NVRM: Xid (",
        "): ",
        "99999999999",
        "max\n",
        "include ",
        "/dev/shm tmpfs size=",
        "k 0 0\n",
        "\"cuda\" \"version\" \"",
        "580.95.05",
        "535.",
        "\u{1b}[2J",
        "`",
        "\n",
        ":",
        "0x10de",
    ]);
    let lines = prop::collection::vec(words, 0..12).prop_map(|words| words.concat().into_bytes());
    prop_oneof![bytes, lines]
}

/// 64 cases, or `PROPTEST_CASES`.
fn config() -> ProptestConfig {
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default().cases,
        None => 64,
    };
    ProptestConfig::with_cases(cases)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_contents(texts in prop::collection::vec(text(), FILES.len()), variable in "[ -~]{0,40}") {
        let files = FILES.iter().zip(&texts);
        let machine = files.fold(Machine::healthy(), |machine, (path, text)| machine.file(path, text));
        let names = ["CUDA_VISIBLE_DEVICES", "CUDA_HOME", "LD_LIBRARY_PATH", "CUDA_COMPUTE_CAP", "HOSTNAME", "NVIDIA_VISIBLE_DEVICES"];
        let machine = names.iter().fold(machine, |machine, name| machine.variable(name, &variable));
        let report = machine.kernels("mine", &String::from_utf8_lossy(&texts[0])).check();
        prop_assert!(!codes(&report).contains(&"HR-002"), "{report}");
        let text = report.redacted().to_string();
        prop_assert!(!text.contains('\u{1b}'), "nothing that a terminal would act on");
    }

    /// Versions in the names of files, in files, and as the libraries tell them.
    #[test]
    fn any_versions(text in "(13|12|0|580|4294967296|99999999999999999999|\\.|\\.|-|[ -.0-~]){0,8}", number in any::<i32>()) {
        if let Some(version) = Version::parse(&text) {
            prop_assert_eq!(Version::parse(&version.plain()), Some(version));
        }
        prop_assert_eq!(Version::of_cuda(number).is_some(), number > 0);
        let json = serde_json::json!({"cuda": {"version": text}, "cuda_nvcc": {"version": text}});
        let libraries = ["cublas", "cudart", "cudnn", "nccl", "nvrtc"];
        let machine = libraries.iter().fold(Machine::healthy(), |machine, name| {
            machine.file(&format!("{LIBRARIES}/lib{name}.so.{text}"), "")
        });
        let machine = machine.file("/usr/local/cuda-13.0/version.json", json.to_string());
        let machine = machine.file("/sys/module/nvidia/version", &text);
        let report = machine.answers(&format!("driver={text}\ncuda={number}")).check();
        prop_assert!(!codes(&report).contains(&"HR-002"), "{report}");
        prop_assert!(!report.redacted().to_string().is_empty());
    }

    #[test]
    fn any_ptx(text in "(\\.version|\\.target|sm_|[0-9a-f.]| |\n){0,60}") {
        let report = Machine::plain().kernels("mine", &text).check();
        prop_assert!(report.worst() <= Severity::Failure);
    }
}

#[test]
fn links_in_a_circle() {
    let machine = FILES.iter().fold(Machine::healthy(), |machine, path| {
        machine.link(path, path.rsplit('/').next().unwrap())
    });
    let folder = crate::machine::LIBRARIES;
    let machine = machine
        .link(&format!("{folder}/libcublas.so.13"), "libcublas.so.13")
        .link("/usr/local/cuda", "cuda")
        .link("/dev/nvidia0", "nvidia0")
        .link("/etc/ld.so.conf.d/loop", ".")
        .answers("status.cuInit=100");
    let report = machine.check();
    assert!(!codes(&report).contains(&"HR-002"), "{report}");
    assert!(codes(&report).contains(&"HR-107"), "{report}");
}

#[test]
fn groups_behind_pipes_hold_nobody_up() {
    let machine = Machine::plain().file("/sys/fs/cgroup/x", "");
    for path in ["/proc/self/cgroup", "/sys/fs/cgroup/memory.max"] {
        fs::create_dir_all(machine.path(path).parent().unwrap()).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(machine.path(path))
            .status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    }
    assert!(!codes(&machine.check()).contains(&"HR-001"));
}

#[test]
fn folders_and_pipes_instead_of_files() {
    let machine = FILES.iter().fold(Machine::plain(), |machine, path| {
        let path = machine.path(path);
        let _ = fs::remove_file(&path);
        fs::create_dir_all(&path).unwrap();
        machine
    });
    assert!(codes(&machine.check()).contains(&"HR-705"));

    let machine = Machine::plain()
        .without("/dev/kmsg")
        .without("/proc/cpuinfo");
    for path in ["/dev/kmsg", "/proc/cpuinfo"] {
        let made = std::process::Command::new("mkfifo")
            .arg(machine.path(path))
            .status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("skipped: no mkfifo here");
            return;
        }
    }
    assert!(
        !codes(&machine.check()).contains(&"HR-001"),
        "nothing waits for a writer"
    );
}

#[test]
fn huge_files_are_read_in_part() {
    let huge = |beginning: &str| {
        let mut text = beginning.as_bytes().to_vec();
        text.resize(32 << 20, b'x');
        text
    };
    let mut log = huge("");
    log.extend(b"\nNVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n");
    let machine = Machine::healthy()
        .file("/proc/cpuinfo", huge("processor : 0\n"))
        .file(
            "/proc/mounts",
            huge("shm /dev/shm tmpfs rw,size=65536k 0 0\n"),
        )
        .file("/dev/kmsg", log);
    let report = machine.check();
    assert!(
        codes(&report).contains(&"HR-704") && codes(&report).contains(&"HR-110"),
        "{report}"
    );
}

#[test]
fn an_empty_root_and_none_at_all() {
    for report in [
        Machine::empty().check(),
        // SAFETY: there is no library.
        unsafe { Environment::new().root("/nowhere/at/all") }
            .variables([("A", "b")])
            .check(),
    ] {
        assert!(
            codes(&report).contains(&"HR-101") && codes(&report).contains(&"HR-705"),
            "{report}"
        );
    }
}
