//! Findings about single GPUs.

mod health;
mod memory;

use bytesize::ByteSize;
use nvml_wrapper::enum_wrappers::device::ComputeMode;

use health::{errors, retired, speed};
use memory::memory;

use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::{Finding, answer};
use crate::environment::probe::nvml::GpuReading;
use crate::facts;

/// The first compute capability for which candle compiles its bf16 kernels.
const WITH_BF16: (u32, u32) = (8, 0);

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gpu in facts.gpus() {
        let mut found = Vec::new();
        match gpu.handle {
            Err(number) => found.extend(unreachable(facts, number)),
            Ok(()) => {
                found.extend(modes(facts, gpu));
                found.extend(errors(gpu));
                found.extend(speed(gpu));
                found.extend(memory(facts, gpu));
                found.extend(refused(gpu));
                found.push(Finding::new(code::GPU, summary(facts, gpu)));
            }
        }
        findings.extend(found.into_iter().map(|finding| finding.on(gpu.index)));
    }
    findings
}

/// The finding for a return code that means trouble of the GPU.
fn trouble(number: u32, seen: String) -> Finding {
    let status = facts::nvml(number);
    match number {
        15 | 16 => Finding::new(code::GPU_LOST, seen).advised(status),
        8 => Finding::new(code::POWER_CABLES, seen),
        14 => Finding::new(code::INFOROM, seen),
        _ => Finding::new(code::NVML_FAILS, seen).advised(status),
    }
}

fn unreachable(facts: &Facts, number: u32) -> Option<Finding> {
    let call = "nvmlDeviceGetHandleByIndex";
    let is_told = number == 999 && facts.is_container();
    (!is_told).then(|| trouble(number, answer(call, number, facts::nvml(number))))
}

fn modes(facts: &Facts, gpu: &GpuReading) -> Vec<Finding> {
    let mut found = Vec::new();
    if gpu.persistence == Ok(false) && !facts.is_wsl() {
        found.push(Finding::new(code::PERSISTENCE_OFF, "persistence mode 0"));
    }
    match gpu.compute_mode {
        Ok(ComputeMode::Prohibited) => {
            let seen = "compute mode 2, prohibited";
            found.push(Finding::new(code::COMPUTE_PROHIBITED, seen));
        }
        Ok(ComputeMode::ExclusiveThread | ComputeMode::ExclusiveProcess) => {
            let seen = "compute mode 1 or 3, exclusive";
            found.push(Finding::new(code::COMPUTE_EXCLUSIVE, seen));
        }
        _ => {}
    }
    if let Some(count) = gpu.graphics.ok().filter(|count| *count > 0) {
        let seen = format!("processes that draw: {count}");
        found.push(Finding::new(code::GRAPHICS, seen));
    }
    if let Some((major, minor)) = facts.capability(gpu).filter(|gpu| *gpu < WITH_BF16) {
        let seen = format!("compute capability {major}.{minor}");
        found.push(Finding::new(code::OLD_GPU, seen));
    }
    if gpu.mig == Ok(true) {
        found.push(Finding::new(code::MIG, "MIG mode 1"));
    }
    found
}

/// Values that NVML refused: usual gaps as one note, and return codes that mean trouble as findings.
fn refused(gpu: &GpuReading) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut gaps = Vec::new();
    for (name, number) in gpu.refused() {
        // A GPU repairs its memory in one of two ways.
        let is_other_way = name == "remapped rows" && gpu.retired.is_ok()
            || name.contains("retire") && gpu.remapped.is_ok();
        match number {
            // Not supported, not permitted, no function, no data, another layout.
            3 | 4 | 6 | 13 | 21 | 25 | 26 | 29 => {
                if !is_other_way {
                    gaps.push(format!("{name} ({number})"));
                }
                continue;
            }
            _ => {}
        }
        let seen = answer(&format!("{name}: NVML"), number, facts::nvml(number));
        let finding = trouble(number, seen);
        // A lost GPU returns it for every value.
        match found.iter_mut().find(|known| known.code == finding.code) {
            Some(known) => known.seen.push_str(&format!("; {name}: {number}")),
            None => found.push(finding),
        }
    }
    if !gaps.is_empty() {
        let seen = format!("n/a: {}", gaps.join(", "));
        found.push(Finding::new(code::FIELDS_UNKNOWN, seen));
    }
    found
}

fn summary(facts: &Facts, gpu: &GpuReading) -> String {
    let name = gpu.name.as_deref().unwrap_or("unknown name");
    let mut parts = vec![name.to_owned()];
    if let Some((major, minor)) = facts.capability(gpu) {
        parts.push(format!("compute capability {major}.{minor}"));
    }
    if let Ok(memory) = gpu.memory {
        let (free, total) = (ByteSize(memory.free), ByteSize(memory.total));
        parts.push(format!("{free} free of {total}"));
    }
    if let Ok(degrees) = gpu.temperature {
        parts.push(format!("{degrees}°C"));
    }
    match (gpu.power, gpu.power_limit) {
        (Ok(now), Ok(limit)) => parts.push(format!("{} of {} W", now / 1000, limit / 1000)),
        (Ok(now), Err(_)) => parts.push(format!("{} W", now / 1000)),
        _ => {}
    }
    let retired = retired(gpu);
    if retired > 0 {
        parts.push(format!("retired pages: {retired}"));
    }
    let remapped = gpu.remapped.map_or(0, |rows| rows.uncorrectable);
    if remapped > 0 {
        parts.push(format!("remapped rows: {remapped}"));
    }
    parts.join(", ")
}
