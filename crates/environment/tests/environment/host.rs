//! What the checker reads in `/proc` and in the files of control groups.

use crate::machine::{Machine, codes};

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
