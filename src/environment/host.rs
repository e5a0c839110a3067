use bytesize::ByteSize;

use super::code;
use super::facts::Facts;
use super::finding::{Finding, Findings};
use super::source::Source;
use crate::memory::SystemMemory;

/// Less than this share of the memory is little.
const LITTLE: f64 = 0.05;
/// With more than this share free, swap in use does no harm.
const PLENTY: f64 = 0.2;
/// Docker's default for `/dev/shm` is 64 MiB.
const SMALL_SHM: u64 = 1 << 30;

/// The machine's memory and processors.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) memory: SystemMemory,
    findings: Findings,
    /// The bytes that `/dev/shm` may hold, if it is mounted with a size.
    shm: Option<u64>,
}

impl Host {
    pub(super) fn look(source: &Source) -> Self {
        let memory = SystemMemory::read_by(|path| source.text(path));
        let mut findings = Findings::default();
        match memory.capacity().zip(memory.free()) {
            Some((total, free)) => judge(source, memory, total, free, &mut findings),
            None => findings.add(code::HOST_UNKNOWN, "/proc/meminfo does not contain it"),
        }
        Self {
            memory,
            findings,
            shm: source.text("/proc/mounts").as_deref().and_then(shm),
        }
    }

    /// The findings; only programs for a GPU need shared memory.
    pub(super) fn findings(self, facts: &Facts) -> Vec<Finding> {
        let mut findings = self.findings;
        if let Some(shm) = self.shm.filter(|shm| *shm < SMALL_SHM && facts.shows_gpu()) {
            findings.add(code::SHM_SMALL, ByteSize(shm).to_string());
        }
        findings.0
    }
}

fn judge(source: &Source, memory: SystemMemory, total: u64, free: u64, findings: &mut Findings) {
    let is_below = |share: f64| (free as f64) < share * total as f64;
    let system = source.line("/proc/sys/kernel/osrelease");
    let system = system.map_or("unknown system".to_owned(), |name| format!("Linux {name}"));
    let processors = source.text("/proc/cpuinfo").unwrap_or_default();
    let mut lines = processors.lines();
    let model = lines.find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map(|(_, name)| format!(" ({})", name.trim()));
    let numbers = processors
        .lines()
        .filter(|line| line.starts_with("processor"));
    let (count, model) = (numbers.count(), model.unwrap_or_default());
    let free = format!("{} free of {}", ByteSize(free), ByteSize(total));
    let seen = format!("{system}, processors: {count}{model}, {free}");
    findings.add(code::HOST, seen);
    let machine = memory.total.unwrap_or(u64::MAX);
    if let Some(limit) = memory.cgroup_limit.filter(|limit| *limit < machine) {
        let seen = format!("{} of the machine's {}", ByteSize(limit), ByteSize(machine));
        findings.add(code::CGROUP_LIMIT, seen);
    }
    if is_below(LITTLE) {
        findings.add(code::LOW_MEMORY, free);
    }
    let info = source.text("/proc/meminfo").unwrap_or_default();
    let swap = |key| SystemMemory::meminfo(&info, key);
    if let (Some(swap), Some(left)) = (swap("SwapTotal:"), swap("SwapFree:")) {
        let used = swap.saturating_sub(left);
        if used > swap / 2 && is_below(PLENTY) {
            let seen = format!("{} of {} swap in use", ByteSize(used), ByteSize(swap));
            findings.add(code::SWAPPING, seen);
        }
    }
}

/// The size among the options of a mount, such as `shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0`.
fn shm(mounts: &str) -> Option<u64> {
    let mut mounts = mounts.lines().map(|line| line.split_whitespace());
    let mut shm = mounts.find_map(|mut fields| (fields.nth(1)? == "/dev/shm").then_some(fields))?;
    let mut options = shm.nth(1)?.split(',');
    let size = options.find_map(|option| option.strip_prefix("size="))?;
    match size.strip_suffix('k') {
        Some(kib) => kib.parse::<u64>().ok()?.checked_mul(1024),
        None => size.parse().ok(),
    }
}
