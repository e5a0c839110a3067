//! The memory that this machine and this container give a process.

use std::path::{Path, PathBuf};

use crate::files;

/// Bytes, as the operating system reports them at one moment; `None` where it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SystemMemory {
    pub(crate) total: Option<u64>,
    pub(crate) available: Option<u64>,
    /// The smallest limit of the control groups that this process is in.
    pub(crate) cgroup_limit: Option<u64>,
    /// The smallest amount that one of those groups has left.
    pub(crate) cgroup_free: Option<u64>,
}

impl SystemMemory {
    pub(crate) fn read() -> Self {
        Self::read_by(|path| files::text(path).ok())
    }

    /// Reads the files of `/proc` and `/sys` through `text`, which tests and the environment check replace.
    pub(crate) fn read_by(text: impl Fn(&Path) -> Option<String>) -> Self {
        let info = text(Path::new("/proc/meminfo")).unwrap_or_default();
        let groups = groups(&text);
        let free = groups
            .iter()
            .filter_map(|group| Some(group.limit.saturating_sub(group.used?)));
        Self {
            total: Self::meminfo(&info, "MemTotal:"),
            available: Self::meminfo(&info, "MemAvailable:"),
            cgroup_limit: groups.iter().map(|group| group.limit).min(),
            cgroup_free: free.min(),
        }
    }

    /// Bytes that a process may have in total if it holds `in_use` already.
    pub(crate) fn usable(&self, in_use: u64) -> Option<u64> {
        let usable = self.available.map(|bytes| bytes.saturating_add(in_use));
        usable.into_iter().chain(self.cgroup_limit).min()
    }

    /// Bytes that this process and all others can still take.
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
    /// Without the page cache that the kernel drops before it kills: reading a data set fills a group with it.
    used: Option<u64>,
}

/// File names of one version of control groups.
struct Names {
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with the page cache that the kernel drops first.
    cache: &'static str,
}

const VERSION_2: Names = Names {
    limit: "memory.max",
    used: "memory.current",
    cache: "inactive_file ",
};
const VERSION_1: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: "total_inactive_file ",
};

/// The groups with a limit that this process is in, of either version.
fn groups(text: &impl Fn(&Path) -> Option<String>) -> Vec<Group> {
    let groups = text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mount = Path::new("/sys/fs/cgroup");
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        if controllers.is_empty() {
            found.extend(groups_along(text, mount, path, &VERSION_2));
        } else if controllers.split(',').any(|name| name == "memory") {
            found.extend(groups_along(text, &mount.join("memory"), path, &VERSION_1));
        }
    }
    found
}

/// The group and all its parents up to the mount, since a parent's limit binds its children. Inside a container the path may name
/// groups that are not mounted; the mount itself is then the container's own group.
fn groups_along(
    text: &impl Fn(&Path) -> Option<String>,
    mount: &Path,
    path: &str,
    names: &Names,
) -> Vec<Group> {
    let group: PathBuf = mount.join(path.trim_start_matches('/'));
    let groups = group
        .ancestors()
        .take_while(|group| group.starts_with(mount));
    let limited = groups.filter_map(|group| {
        let limit = parse_limit(&text(&group.join(names.limit))?)?;
        let used: Option<u64> =
            text(&group.join(names.used)).and_then(|text| text.trim().parse().ok());
        let statistics = text(&group.join("memory.stat")).unwrap_or_default();
        let mut lines = statistics.lines();
        let cache = lines.find_map(|line| line.strip_prefix(names.cache)?.trim().parse().ok());
        Some(Group {
            limit,
            used: used.map(|used| used.saturating_sub(cache.unwrap_or(0))),
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

    /// A machine with these files: a path, a space and the content in each line, with `|` for the content's own line ends.
    fn machine(files: &str) -> SystemMemory {
        let files = format!("{MEMINFO}{files}");
        SystemMemory::read_by(|path| {
            let mut files = files.lines().filter_map(|line| line.split_once(' '));
            let (_, text) = files.find(|(name, _)| Path::new(name) == path)?;
            Some(text.replace('|', "\n"))
        })
    }

    const MEMINFO: &str =
        "/proc/meminfo MemTotal:   8388608 kB|MemFree: 1 kB|MemAvailable:   4194304 kB|\n";
    const GIB: u64 = 1 << 30;

    #[test]
    fn a_machine_without_groups() {
        let memory = machine("");
        assert_eq!(memory.total, Some(8 * GIB));
        assert_eq!(memory.usable(GIB), Some(5 * GIB));
        assert_eq!(memory.cgroup_limit, None);
    }

    #[test]
    fn version_2_takes_the_least_limit_up_to_the_mount() {
        let memory = machine(
            "/proc/self/cgroup 0::/job/step|\n\
             /sys/fs/cgroup/job/memory.max 2147483648|\n\
             /sys/fs/cgroup/job/memory.current 1610612736|\n\
             /sys/fs/cgroup/job/step/memory.max max|\n",
        );
        assert_eq!(memory.cgroup_limit, Some(2 * GIB));
        assert_eq!(memory.usable(0), Some(2 * GIB));
        assert_eq!(memory.capacity(), Some(2 * GIB));
        assert_eq!(memory.free(), Some(GIB / 2), "what is left of the limit");
    }

    #[test]
    fn page_cache_that_is_dropped_first_counts_as_free() {
        let version_2 = machine(
            "/proc/self/cgroup 0::/job|\n\
             /sys/fs/cgroup/job/memory.max 2147483648|\n\
             /sys/fs/cgroup/job/memory.current 2147483648|\n\
             /sys/fs/cgroup/job/memory.stat anon 1|file 9|inactive_file 1073741824|\n",
        );
        assert_eq!(version_2.free(), Some(GIB));
        let version_1 = machine(
            "/proc/self/cgroup 4:memory:/job|\n\
             /sys/fs/cgroup/memory/job/memory.limit_in_bytes 2147483648|\n\
             /sys/fs/cgroup/memory/job/memory.usage_in_bytes 2147483648|\n\
             /sys/fs/cgroup/memory/job/memory.stat inactive_file 1|total_inactive_file 1073741824|\n",
        );
        assert_eq!(version_1.free(), Some(GIB));
    }

    #[test]
    fn a_container_sees_only_its_mount() {
        let memory = machine(
            "/proc/self/cgroup 0::/../../docker/abc|\n\
             /sys/fs/cgroup/memory.max 1073741824|\n",
        );
        assert_eq!(memory.cgroup_limit, Some(GIB));
    }

    #[test]
    fn version_1_and_its_number_for_unlimited() {
        let memory = machine(
            "/proc/self/cgroup 5:cpu,cpuacct:/job|4:memory:/job|\n\
             /sys/fs/cgroup/memory/job/memory.limit_in_bytes 1073741824|\n\
             /sys/fs/cgroup/memory/memory.limit_in_bytes 9223372036854771712|\n",
        );
        assert_eq!(memory.cgroup_limit, Some(GIB));
        assert_eq!(parse_limit("9223372036854771712\n"), None);
    }

    #[test]
    fn unreadable_files_give_none() {
        let memory = SystemMemory::read_by(|_| Some("garbage\n".to_owned()));
        assert_eq!(memory, SystemMemory::default());
        assert_eq!(memory.usable(0), None);
    }
}
