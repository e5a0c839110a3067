use bytesize::ByteSize;

use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::{Finding, answer};
use crate::environment::probe::nvml::GpuReading;
use crate::facts;

/// From this share of its memory on a GPU counts as filled by others.
const FILLED: f64 = 0.5;
/// The processes that are named.
const NAMED: usize = 8;

/// What others hold of the GPU's memory.
pub(super) fn memory(facts: &Facts, gpu: &GpuReading) -> Vec<Finding> {
    let mut found = Vec::new();
    match gpu.memory {
        Ok(memory) if memory.total > 0 => {
            let (own, others) = processes(facts, gpu);
            if memory.used.saturating_sub(own) as f64 >= FILLED * memory.total as f64 {
                let bytes = [memory.used, memory.total, memory.free].map(ByteSize);
                let [used, total, free] = bytes;
                let others = others.map(|others| format!("; {others}"));
                let others = others.unwrap_or_default();
                let seen = format!("{used} of {total} in use, {free} free{others}");
                found.push(Finding::new(code::NEIGHBOUR, seen));
            }
        }
        Ok(_) => found.push(Finding::new(code::MEMORY_UNKNOWN, "NVML reports 0 bytes")),
        Err(number) => {
            let seen = answer("nvmlDeviceGetMemoryInfo", number, facts::nvml(number));
            found.push(Finding::new(code::MEMORY_UNKNOWN, seen));
        }
    }
    if let Some(driver) = facts.driver()
        && facts::reports_processes_wrongly(driver)
    {
        let seen = format!("driver {driver}");
        found.push(Finding::new(code::PROCESSES_WRONG, seen));
    }
    found
}

/// What this process holds of the GPU's memory, and the other processes, if they are known. In a container the processes' numbers are
/// the host's, so that this process is one of the others.
fn processes(facts: &Facts, gpu: &GpuReading) -> (u64, Option<String>) {
    let Ok(processes) = &gpu.processes else {
        return (0, None);
    };
    let own = (!facts.is_container()).then(std::process::id);
    let (own, others): (Vec<_>, Vec<_>) = processes.iter().partition(|(pid, _)| Some(*pid) == own);
    let describe = |(pid, bytes): &(u32, Option<u64>)| match bytes {
        Some(bytes) => format!("process {pid} holds {}", ByteSize(*bytes)),
        None => format!("process {pid} holds an unknown part"),
    };
    let mut described: Vec<_> = others.into_iter().take(NAMED).map(describe).collect();
    if described.is_empty() {
        described.push("NVML lists no other process".to_owned());
    } else if facts.is_container() {
        described.push("numbers are the host's, and this process may be among them".to_owned());
    }
    let own = own.iter().filter_map(|(_, bytes)| *bytes);
    let own = own.fold(0, u64::saturating_add);
    (own, Some(described.join(", ")))
}
