//! What the operating system gives: files of unknown size and kind, read without waiting for a writer, and the memory that this machine and
//! this container give a process.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

#[cfg(unix)]
use rustix::fs::OFlags;

/// The number of bytes that are read of a file; files in `/proc` and `/sys` are far smaller.
const MOST: u64 = 1 << 20;

/// The beginning of a file as text; invalid UTF-8 is replaced.
pub fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open(path)?.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens a file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    without_waiting(File::options().read(true)).open(path)
}

/// Makes opening and reading return at once. A pipe without a writer, or the kernel's log at its end, would block forever.
pub fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    options.custom_flags(OFlags::NONBLOCK.bits() as i32);
    options
}

/// As [`without_waiting`], and opening a symbolic link fails; on Unix only.
pub fn without_links(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    options.custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32);
    options
}

/// Version 1 writes a number near `i64::MAX` where there is no limit, version 2 the word `max`.
const UNLIMITED: u64 = 1 << 62;

/// Bytes, as the operating system reports them at one moment; `None` where it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SystemMemory {
    pub total: Option<u64>,
    pub available: Option<u64>,
    /// The smallest limit of the control groups that this process is in.
    pub cgroup_limit: Option<u64>,
    /// The smallest amount that one of those groups has left.
    pub cgroup_free: Option<u64>,
}

impl SystemMemory {
    pub fn read() -> Self {
        Self::read_by(|path| text(path).ok())
    }

    /// Reads the files of `/proc` and `/sys` through `text`, which the environment check replaces.
    pub fn read_by(text: impl Fn(&Path) -> Option<String>) -> Self {
        let info = text(Path::new("/proc/meminfo")).unwrap_or_default();
        let mut memory = Self {
            total: Self::meminfo(&info, "MemTotal:"),
            available: Self::meminfo(&info, "MemAvailable:"),
            ..Self::default()
        };
        let groups = text(Path::new("/proc/self/cgroup")).unwrap_or_default();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            if let (Some(controllers), Some(path)) = (fields.next(), fields.next()) {
                memory.add_group(controllers, path, &text);
            }
        }
        memory
    }

    /// Adds a control group, with this list of controllers, and all its parents up to the mount, since a parent's limit binds its
    /// children. Inside a container the path may name groups that are not mounted; the mount itself is then the container's own group.
    fn add_group(&mut self, list: &str, path: &str, text: &impl Fn(&Path) -> Option<String>) {
        let (mount, limit_file, used_file, cache_line) = match list {
            "" => (
                "/sys/fs/cgroup",
                "memory.max",
                "memory.current",
                "inactive_file ",
            ),
            _ if list.split(',').any(|name| name == "memory") => (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file ",
            ),
            _ => return,
        };
        let number = |path: &Path| text(path)?.trim().parse::<u64>().ok();
        let group = Path::new(mount).join(path.trim_start_matches('/'));
        let groups = group.ancestors();
        for group in groups.take_while(|group| group.starts_with(mount)) {
            let limit = number(&group.join(limit_file));
            let Some(limit) = limit.filter(|&limit| limit < UNLIMITED) else {
                continue;
            };
            self.cgroup_limit = self.cgroup_limit.into_iter().chain([limit]).min();
            // Reading a data set fills a group with page cache, which the kernel drops before it kills.
            let statistics = text(&group.join("memory.stat")).unwrap_or_default();
            let mut lines = statistics.lines();
            let cache = lines.find_map(|line| line.strip_prefix(cache_line)?.trim().parse().ok());
            let used = number(&group.join(used_file));
            let used = used.map(|used| used.saturating_sub(cache.unwrap_or(0)));
            let free = used.map(|used| limit.saturating_sub(used));
            self.cgroup_free = self.cgroup_free.into_iter().chain(free).min();
        }
    }

    /// Bytes that a process may have in total if it holds `in_use` already.
    pub fn usable(&self, in_use: u64) -> Option<u64> {
        let usable = self.available.map(|bytes| bytes.saturating_add(in_use));
        usable.into_iter().chain(self.cgroup_limit).min()
    }

    /// Bytes that this process and all others can still take.
    pub fn free(&self) -> Option<u64> {
        self.available.into_iter().chain(self.cgroup_free).min()
    }

    /// The machine's memory, or the container's share of it where that is less.
    pub fn capacity(&self) -> Option<u64> {
        self.total.into_iter().chain(self.cgroup_limit).min()
    }

    /// The bytes of a line of `/proc/meminfo`, such as `MemAvailable:   12345 kB`.
    pub fn meminfo(text: &str, key: &str) -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }
}
