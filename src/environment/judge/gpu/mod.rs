//! Findings about single GPUs.

mod health;
mod memory;

use bytesize::ByteSize;

use health::{errors, retired, speed};
use memory::memory;

use crate::environment::code::{
    COMPUTE_EXCLUSIVE, COMPUTE_PROHIBITED, FIELDS_UNKNOWN, GPU, GPU_LOST, GRAPHICS, INFOROM, MIG,
    NVML_FAILS, OLD_GPU, PERSISTENCE_OFF, POWER_CABLES,
};
use crate::environment::facts::Facts;
use crate::environment::finding::{Finding, told};
use crate::environment::probe::nvml::GpuReading;
use crate::facts;

/// candle compiles its bf16 kernels from this compute capability on.
const WITH_BF16: (u32, u32) = (8, 0);

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    facts
        .gpus()
        .iter()
        .flat_map(|gpu| {
            let mut found = Vec::new();
            match gpu.handle {
                Err(code) => found.extend(unreachable(facts, code)),
                Ok(()) => {
                    found.extend(modes(facts, gpu));
                    found.extend(errors(gpu));
                    found.extend(speed(gpu));
                    found.extend(memory(facts, gpu));
                    found.extend(untold(gpu));
                    found.push(Finding::new(&GPU, summary(facts, gpu)));
                }
            }
            found
                .into_iter()
                .map(|finding| finding.on(gpu.index))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn unreachable(facts: &Facts, code: u32) -> Option<Finding> {
    let status = facts::nvml(code);
    let seen = told("nvmlDeviceGetHandleByIndex answers", code, status);
    match code {
        999 if facts.is_container() => None,
        15 | 16 => Some(Finding::new(&GPU_LOST, seen).advised(status)),
        8 => Some(Finding::new(&POWER_CABLES, seen)),
        14 => Some(Finding::new(&INFOROM, seen)),
        _ => Some(Finding::new(&NVML_FAILS, seen).advised(status)),
    }
}

fn modes(facts: &Facts, gpu: &GpuReading) -> Vec<Finding> {
    let mut found = Vec::new();
    if gpu.persistence == Ok(false) && !facts.is_wsl() {
        found.push(Finding::new(&PERSISTENCE_OFF, "persistence mode 0"));
    }
    match gpu.compute_mode {
        Ok(2) => found.push(Finding::new(
            &COMPUTE_PROHIBITED,
            "compute mode 2, prohibited",
        )),
        Ok(mode @ (1 | 3)) => {
            found.push(Finding::new(
                &COMPUTE_EXCLUSIVE,
                format!("compute mode {mode}, exclusive"),
            ));
        }
        _ => {}
    }
    if let Some(count) = gpu.graphics.ok().filter(|count| *count > 0) {
        found.push(Finding::new(
            &GRAPHICS,
            format!("processes that draw: {count}"),
        ));
    }
    if let Some((major, minor)) = facts.capability(gpu).filter(|gpu| *gpu < WITH_BF16) {
        found.push(Finding::new(
            &OLD_GPU,
            format!("compute capability {major}.{minor}"),
        ));
    }
    if gpu.mig == Ok(true) {
        found.push(Finding::new(&MIG, "MIG mode 1"));
    }
    found
}

/// What NVML did not tell: usual gaps as one note, and return codes that mean trouble as findings.
fn untold(gpu: &GpuReading) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut gaps = Vec::new();
    for (name, code) in gpu.untold() {
        let status = facts::nvml(code);
        let trouble = match code {
            15 | 16 => &GPU_LOST,
            8 => &POWER_CABLES,
            14 => &INFOROM,
            // Not supported, not permitted, no function, no data, another layout: gaps.
            3 | 4 | 6 | 13 | 21 | 25 | 26 | 29 => {
                // A GPU repairs its memory in one way or in the other.
                if name == "remapped rows" && gpu.retired.is_ok()
                    || name.contains("retire") && gpu.remapped.is_ok()
                {
                    continue;
                }
                gaps.push(format!("{name} ({code})"));
                continue;
            }
            _ => &NVML_FAILS,
        };
        // A lost GPU says so at every question.
        let seen = told(&format!("{name}: NVML answers"), code, status);
        match found.iter_mut().find(|finding| finding.code == trouble) {
            Some(finding) => finding.seen.push_str(&format!("; {name}: {code}")),
            None => found.push(Finding::new(trouble, seen).advised(status)),
        }
    }
    if !gaps.is_empty() {
        found.push(Finding::new(
            &FIELDS_UNKNOWN,
            format!("n/a: {}", gaps.join(", ")),
        ));
    }
    found
}

fn summary(facts: &Facts, gpu: &GpuReading) -> String {
    let mut parts = vec![
        gpu.name
            .clone()
            .unwrap_or_else(|_| "its name is not told".to_owned()),
    ];
    if let Some((major, minor)) = facts.capability(gpu) {
        parts.push(format!("compute capability {major}.{minor}"));
    }
    if let Ok(memory) = gpu.memory {
        parts.push(format!(
            "{} free of {}",
            ByteSize(memory.free),
            ByteSize(memory.total)
        ));
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
