use bytesize::ByteSize;

use crate::environment::code::{CGROUP_LIMIT, HOST, HOST_UNKNOWN, LOW_MEMORY, SHM_SMALL, SWAPPING};
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;

/// Below this share of the memory little is left.
const LITTLE: f64 = 0.05;
/// Above it swap in use is what was put aside for good, and does no harm.
const PLENTY: f64 = 0.2;
/// Docker's default for `/dev/shm` is 64 MiB.
const SMALL_SHM: u64 = 1 << 30;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some(host) = &facts.host else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let memory = host.memory;
    let (Some(total), Some(free)) = (memory.capacity(), memory.free()) else {
        findings.push(Finding::new(
            &HOST_UNKNOWN,
            "/proc/meminfo does not tell it",
        ));
        return findings;
    };
    let system = host.system.as_deref().unwrap_or("an unknown system");
    let processor = host.processor.as_deref().map(|name| format!(" ({name})"));
    let seen = format!(
        "{system}, processors: {}{}, {} free of {}",
        host.processors,
        processor.unwrap_or_default(),
        ByteSize(free),
        ByteSize(total)
    );
    findings.push(Finding::new(&HOST, seen));
    let machine = memory.total.unwrap_or(u64::MAX);
    if let Some(limit) = memory.cgroup_limit.filter(|limit| *limit < machine) {
        let seen = format!("{} of the machine's {}", ByteSize(limit), ByteSize(machine));
        findings.push(Finding::new(&CGROUP_LIMIT, seen));
    }
    if (free as f64) < LITTLE * total as f64 {
        let seen = format!("{} of {} are free", ByteSize(free), ByteSize(total));
        findings.push(Finding::new(&LOW_MEMORY, seen));
    }
    if let (Some(swap), Some(left)) = (host.swap_total, host.swap_free) {
        let used = swap.saturating_sub(left);
        if used > swap / 2 && (free as f64) < PLENTY * total as f64 {
            let seen = format!("{} of {} swap in use", ByteSize(used), ByteSize(swap));
            findings.push(Finding::new(&SWAPPING, seen));
        }
    }
    if let Some(shm) = host.shm.filter(|shm| *shm < SMALL_SHM && facts.shows_gpu()) {
        findings.push(Finding::new(&SHM_SMALL, ByteSize(shm).to_string()));
    }
    findings
}
