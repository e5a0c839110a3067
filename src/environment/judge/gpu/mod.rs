//! Findings about single GPUs.

mod health;
mod memory;

use bytesize::ByteSize;
use nvml_wrapper::enum_wrappers::device::ComputeMode;

use super::{Facts, Findings, answer, code};
use crate::environment::FindingCode;
use crate::environment::probe::nvml::GpuReading;
use crate::facts;

/// The first compute capability for which candle compiles its bf16 kernels.
const WITH_BF16: (u32, u32) = (8, 0);

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    for gpu in facts.gpus() {
        let before = findings.0.len();
        match gpu.handle {
            // A container that lost its devices is a finding of its own.
            Err(999) if facts.is_container() => {}
            Err(number) => trouble("nvmlDeviceGetHandleByIndex", number, findings),
            Ok(()) => {
                modes(facts, gpu, findings);
                health::errors(gpu, findings);
                health::speed(gpu, findings);
                memory::judge(facts, gpu, findings);
                refused(gpu, findings);
                findings.add(code::GPU, summary(facts, gpu));
            }
        }
        for finding in &mut findings.0[before..] {
            finding.set_gpu(gpu.index);
        }
    }
}

/// The kind of finding for a return code that means trouble of the GPU.
fn kind(number: u32) -> &'static FindingCode {
    match number {
        15 | 16 => code::GPU_LOST,
        8 => code::POWER_CABLES,
        14 => code::INFOROM,
        _ => code::NVML_FAILS,
    }
}

fn trouble(call: &str, number: u32, findings: &mut Findings) {
    findings.answer(kind(number), (call, number), facts::nvml(number));
}

fn modes(facts: &Facts, gpu: &GpuReading, findings: &mut Findings) {
    if gpu.persistence == Ok(false) && !facts.is_wsl() {
        findings.add(code::PERSISTENCE_OFF, "persistence mode 0");
    }
    match gpu.compute_mode {
        Ok(ComputeMode::Prohibited) => {
            findings.add(code::COMPUTE_PROHIBITED, "compute mode 2, prohibited")
        }
        Ok(ComputeMode::ExclusiveThread | ComputeMode::ExclusiveProcess) => {
            findings.add(code::COMPUTE_EXCLUSIVE, "compute mode 1 or 3, exclusive")
        }
        _ => {}
    }
    if let Some(count) = gpu.graphics.ok().filter(|count| *count > 0) {
        findings.add(code::GRAPHICS, format!("processes that draw: {count}"));
    }
    if let Some((major, minor)) = facts.capability(gpu).filter(|gpu| *gpu < WITH_BF16) {
        findings.add(code::OLD_GPU, format!("compute capability {major}.{minor}"));
    }
    if gpu.mig == Ok(true) {
        findings.add(code::MIG, "MIG mode 1");
    }
}

/// Values that NVML refused: usual gaps as one note, and return codes that mean trouble as findings.
fn refused(gpu: &GpuReading, findings: &mut Findings) {
    let before = findings.0.len();
    let mut gaps = Vec::new();
    for (name, number) in gpu.refused() {
        // Not supported, not permitted, no function, no data, another layout.
        if matches!(number, 3 | 4 | 6 | 13 | 21 | 25 | 26 | 29) {
            // A GPU repairs its memory in one of two ways.
            let is_other_way = name == "remapped rows" && gpu.retired.is_ok()
                || name.contains("retire") && gpu.remapped.is_ok();
            if !is_other_way {
                gaps.push(format!("{name} ({number})"));
            }
            continue;
        }
        // A lost GPU returns it for every value.
        let mut known = findings.0[before..].iter_mut();
        match known.find(|known| known.code == kind(number)) {
            Some(known) => known.seen.push_str(&format!("; {name}: {number}")),
            None => trouble(&format!("{name}: NVML"), number, findings),
        }
    }
    if !gaps.is_empty() {
        findings.add(code::FIELDS_UNKNOWN, format!("n/a: {}", gaps.join(", ")));
    }
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
    parts.extend(gpu.temperature.map(|degrees| format!("{degrees}°C")));
    match (gpu.power, gpu.power_limit) {
        (Ok(now), Ok(limit)) => parts.push(format!("{} of {} W", now / 1000, limit / 1000)),
        (Ok(now), Err(_)) => parts.push(format!("{} W", now / 1000)),
        _ => {}
    }
    let remapped = gpu.remapped.map(|rows| rows.uncorrectable);
    for (what, count) in [("retired pages", gpu.retired), ("remapped rows", remapped)] {
        if let Some(count) = count.ok().filter(|count| *count > 0) {
            parts.push(format!("{what}: {count}"));
        }
    }
    parts.join(", ")
}
