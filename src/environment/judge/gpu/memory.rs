use bytesize::ByteSize;

use crate::environment::code::{MEMORY_UNKNOWN, NEIGHBOUR, PROCESSES_WRONG};
use crate::environment::facts::Facts;
use crate::environment::finding::{Finding, told};
use crate::environment::probe::nvml::GpuReading;
use crate::facts::{self, Version};

/// From this share of its memory on a GPU counts as filled by others.
const FILLED: f64 = 0.5;

/// How much of the GPU's memory others hold.
pub(super) fn memory(facts: &Facts, gpu: &GpuReading) -> Vec<Finding> {
    let mut found = Vec::new();
    match gpu.memory {
        Ok(memory) if memory.total > 0 => {
            let (own, others) = processes(facts, gpu);
            if memory.used.saturating_sub(own) as f64 >= FILLED * memory.total as f64 {
                let mut seen = format!(
                    "{} of {} in use, {} free",
                    ByteSize(memory.used),
                    ByteSize(memory.total),
                    ByteSize(memory.free)
                );
                if let Some(others) = others {
                    seen.push_str(&format!("; {others}"));
                }
                found.push(Finding::new(&NEIGHBOUR, seen));
            }
        }
        Ok(_) => found.push(Finding::new(&MEMORY_UNKNOWN, "NVML says 0 bytes")),
        Err(code) => {
            let seen = told("nvmlDeviceGetMemoryInfo answers", code, facts::nvml(code));
            found.push(Finding::new(&MEMORY_UNKNOWN, seen));
        }
    }
    let affected = |driver: &Version| facts::reports_processes_wrongly(*driver);
    if let Some(version) = facts.driver().filter(affected) {
        found.push(Finding::new(&PROCESSES_WRONG, format!("driver {version}")));
    }
    found
}

/// What this process holds of the GPU's memory, and who else is there, where that is told. In a container the numbers of processes
/// are the host's, so this process cannot be told from others.
fn processes(facts: &Facts, gpu: &GpuReading) -> (u64, Option<String>) {
    let Ok(processes) = &gpu.processes else {
        return (0, None);
    };
    let own = (!facts.is_container()).then(std::process::id);
    let (own, others): (Vec<_>, Vec<_>) = processes.iter().partition(|(pid, _)| Some(*pid) == own);
    let mut told: Vec<_> = others
        .iter()
        .take(8)
        .map(|(pid, bytes)| match bytes {
            Some(bytes) => format!("process {pid} holds {}", ByteSize(*bytes)),
            None => format!("process {pid} holds an unknown part"),
        })
        .collect();
    if told.is_empty() {
        told.push("NVML shows no other process".to_owned());
    } else if facts.is_container() {
        told.push("numbers are the host's, and this process may be among them".to_owned());
    }
    let own = own.iter().filter_map(|(_, bytes)| *bytes);
    (own.fold(0, u64::saturating_add), Some(told.join(", ")))
}
