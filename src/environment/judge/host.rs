use bytesize::ByteSize;

use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;

/// Less than this share of the memory is little.
const LITTLE: f64 = 0.05;
/// With more than this share free, swap in use does no harm.
const PLENTY: f64 = 0.2;
/// Docker's default for `/dev/shm` is 64 MiB.
const SMALL_SHM: u64 = 1 << 30;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some(host) = &facts.host else {
        return Vec::new();
    };
    let memory = host.memory;
    let (Some(total), Some(free)) = (memory.capacity(), memory.free()) else {
        let seen = "/proc/meminfo does not contain it";
        return vec![Finding::new(code::HOST_UNKNOWN, seen)];
    };
    let is_below = |share: f64| (free as f64) < share * total as f64;
    let system = host.system.as_deref().unwrap_or("unknown system");
    let processor = host.processor.as_deref().map(|name| format!(" ({name})"));
    let processors = format!("{}{}", host.processors, processor.unwrap_or_default());
    let free = format!("{} free of {}", ByteSize(free), ByteSize(total));
    let seen = format!("{system}, processors: {processors}, {free}");
    let mut findings = vec![Finding::new(code::HOST, seen)];
    let machine = memory.total.unwrap_or(u64::MAX);
    if let Some(limit) = memory.cgroup_limit.filter(|limit| *limit < machine) {
        let seen = format!("{} of the machine's {}", ByteSize(limit), ByteSize(machine));
        findings.push(Finding::new(code::CGROUP_LIMIT, seen));
    }
    if is_below(LITTLE) {
        findings.push(Finding::new(code::LOW_MEMORY, free));
    }
    if let (Some(swap), Some(left)) = (host.swap_total, host.swap_free) {
        let used = swap.saturating_sub(left);
        if used > swap / 2 && is_below(PLENTY) {
            let seen = format!("{} of {} swap in use", ByteSize(used), ByteSize(swap));
            findings.push(Finding::new(code::SWAPPING, seen));
        }
    }
    if let Some(shm) = host.shm.filter(|shm| *shm < SMALL_SHM && facts.shows_gpu()) {
        findings.push(Finding::new(code::SHM_SMALL, ByteSize(shm).to_string()));
    }
    findings
}
