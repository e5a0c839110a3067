//! How much memory this machine and this container let a process have.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes, as the operating system reports them at one moment; `None` where it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SystemMemory {
    pub(crate) total: Option<u64>,
    pub(crate) available: Option<u64>,
    /// The least of the limits of the control groups that this process is in.
    pub(crate) cgroup_limit: Option<u64>,
    /// The least that one of those groups has left.
    pub(crate) cgroup_free: Option<u64>,
}

impl SystemMemory {
    pub(crate) fn read() -> Self {
        Self::read_under(Path::new("/"))
    }

    /// Reads `/proc` and `/sys` below `root`, so that tests can lay out machines of their own.
    pub(crate) fn read_under(root: &Path) -> Self {
        let info = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let groups = groups(root);
        Self {
            total: Self::meminfo(&info, "MemTotal:"),
            available: Self::meminfo(&info, "MemAvailable:"),
            cgroup_limit: groups.iter().map(|group| group.limit).min(),
            cgroup_free: groups.iter().filter_map(Group::free).min(),
        }
    }

    /// What a process that holds `in_use` bytes already may have in all.
    pub(crate) fn usable(&self, in_use: u64) -> Option<u64> {
        let available = self
            .available
            .map(|available| available.saturating_add(in_use));
        available.into_iter().chain(self.cgroup_limit).min()
    }

    /// What this process and all others could still take.
    pub(crate) fn free(&self) -> Option<u64> {
        self.available.into_iter().chain(self.cgroup_free).min()
    }

    /// The bytes of a line of `/proc/meminfo`, such as `MemAvailable:   12345 kB`.
    pub(crate) fn meminfo(text: &str, key: &str) -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// The machine's memory, or the container's share of it where that is less.
    pub(crate) fn capacity(&self) -> Option<u64> {
        self.total.into_iter().chain(self.cgroup_limit).min()
    }
}

/// A control group with a limit.
struct Group {
    limit: u64,
    used: Option<u64>,
}

impl Group {
    fn free(&self) -> Option<u64> {
        Some(self.limit.saturating_sub(self.used?))
    }
}

/// The limited groups that this process is in, of either version.
fn groups(root: &Path) -> Vec<Group> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mount = root.join("sys/fs/cgroup");
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        if controllers.is_empty() {
            found.extend(groups_along(&mount, path, "memory.max", "memory.current"));
        } else if controllers.split(',').any(|name| name == "memory") {
            let mount = mount.join("memory");
            let (limit, used) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
            found.extend(groups_along(&mount, path, limit, used));
        }
    }
    found
}

/// The group and all above it up to the mount: a parent's limit binds its children. Inside a container the path may name
/// groups that are not mounted there; the mount itself is then the container's own group.
fn groups_along(mount: &Path, path: &str, limit: &str, used: &str) -> Vec<Group> {
    let group: PathBuf = mount.join(path.trim_start_matches('/'));
    let groups = group
        .ancestors()
        .take_while(|group| group.starts_with(mount));
    let limited = groups.filter_map(|group| {
        Some(Group {
            limit: parse_limit(&fs::read_to_string(group.join(limit)).ok()?)?,
            used: fs::read_to_string(group.join(used))
                .ok()
                .and_then(|text| text.trim().parse().ok()),
        })
    });
    limited.collect()
}

/// `max` in version 2, and in version 1 a number near `i64::MAX`, mean that there is no limit.
fn parse_limit(text: &str) -> Option<u64> {
    const UNLIMITED: u64 = 1 << 62;
    text.trim().parse().ok().filter(|&limit| limit < UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of its own in a temporary folder, which goes away with the value.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("candle-headroom-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn read(&self) -> SystemMemory {
            SystemMemory::read_under(&self.0)
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: &str = "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   4194304 kB\n";
    const GIB: u64 = 1 << 30;

    #[test]
    fn a_machine_without_groups() {
        let memory = Machine::new("plain", &[("proc/meminfo", MEMINFO)]).read();
        assert_eq!(memory.total, Some(8 * GIB));
        assert_eq!(memory.usable(GIB), Some(5 * GIB));
        assert_eq!(memory.cgroup_limit, None);
    }

    #[test]
    fn version_2_takes_the_least_limit_up_to_the_mount() {
        let machine = Machine::new(
            "v2",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/job/step\n"),
                ("sys/fs/cgroup/job/memory.max", "2147483648\n"),
                ("sys/fs/cgroup/job/memory.current", "1610612736\n"),
                ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ],
        );
        assert_eq!(machine.read().cgroup_limit, Some(2 * GIB));
        assert_eq!(machine.read().usable(0), Some(2 * GIB));
        assert_eq!(machine.read().capacity(), Some(2 * GIB));
        assert_eq!(
            machine.read().free(),
            Some(GIB / 2),
            "not the limit, but what is left of it"
        );
    }

    #[test]
    fn a_container_sees_only_its_mount() {
        let machine = Machine::new(
            "container",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/../../docker/abc\n"),
                ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ],
        );
        assert_eq!(machine.read().cgroup_limit, Some(GIB));
    }

    #[test]
    fn version_1_and_its_number_for_unlimited() {
        let limited = Machine::new(
            "v1",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n"),
                (
                    "sys/fs/cgroup/memory/job/memory.limit_in_bytes",
                    "1073741824\n",
                ),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
            ],
        );
        assert_eq!(limited.read().cgroup_limit, Some(GIB));
        assert_eq!(parse_limit("9223372036854771712"), None);
    }

    #[test]
    fn nothing_known_is_none() {
        let memory = Machine::new("empty", &[("proc/meminfo", "garbage\n")]).read();
        assert_eq!(memory, SystemMemory::default());
        assert_eq!(memory.usable(0), None);
    }
}
