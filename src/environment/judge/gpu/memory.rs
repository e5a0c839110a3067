use bytesize::ByteSize;

use super::{Facts, Findings, GpuReading, answer, code};
use crate::facts;

/// From this share of its memory on a GPU counts as filled by others.
const FILLED: f64 = 0.5;
/// The processes that are named.
const NAMED: usize = 8;

/// What others hold of the GPU's memory.
pub(super) fn judge(facts: &Facts, gpu: &GpuReading, findings: &mut Findings) {
    match gpu.memory {
        Ok(memory) if memory.total > 0 => {
            let (own, others) = processes(facts, gpu);
            if memory.used.saturating_sub(own) as f64 >= FILLED * memory.total as f64 {
                let [used, total, free] = [memory.used, memory.total, memory.free].map(ByteSize);
                let seen = format!("{used} of {total} in use, {free} free{others}");
                findings.add(code::NEIGHBOUR, seen);
            }
        }
        Ok(_) => findings.add(code::MEMORY_UNKNOWN, "NVML reports 0 bytes"),
        Err(number) => {
            let seen = answer("nvmlDeviceGetMemoryInfo", number, facts::nvml(number));
            findings.add(code::MEMORY_UNKNOWN, seen);
        }
    }
    if let Some(driver) = facts.driver()
        && facts::reports_processes_wrongly(driver)
    {
        findings.add(code::PROCESSES_WRONG, format!("driver {driver}"));
    }
}

/// This process's bytes and a text about the others. In a container the numbers are the host's, so that this process is one of the others.
fn processes(facts: &Facts, gpu: &GpuReading) -> (u64, String) {
    let (mut own, mut others) = (0u64, Vec::new());
    let Ok(processes) = &gpu.processes else {
        return (own, String::new());
    };
    for (pid, bytes) in processes {
        match bytes {
            _ if *pid == std::process::id() && !facts.is_container() => {
                own = own.saturating_add(bytes.unwrap_or(0));
            }
            Some(bytes) => others.push(format!("process {pid} holds {}", ByteSize(*bytes))),
            None => others.push(format!("process {pid} holds an unknown part")),
        }
    }
    others.truncate(NAMED);
    if others.is_empty() {
        others.push("NVML lists no other process".to_owned());
    } else if facts.is_container() {
        others.push("numbers are the host's, and this process may be among them".to_owned());
    }
    (own, format!("; {}", others.join(", ")))
}
