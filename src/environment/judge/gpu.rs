use bytesize::ByteSize;

use crate::environment::code::Severity;
use crate::environment::code::{
    CLOCKS_HARDWARE, CLOCKS_OTHER, CLOCKS_SOFTWARE, COMPUTE_EXCLUSIVE, COMPUTE_PROHIBITED,
    ECC_ERRORS, ECC_HISTORY, ECC_OFF, FIELDS_UNKNOWN, GPU_HEALTHY, GPU_LOST, GRAPHICS, HOT,
    INFOROM, MANY_RETIRED, MEMORY_UNKNOWN, MIG, NEIGHBOUR, NVML_FAILS, OLD_GPU, PCIE_NARROW,
    PCIE_REPLAYS, PERSISTENCE_OFF, POWER_CABLES, PROCESSES_WRONG, REMAP_FAILED, REPAIR_PENDING,
};
use crate::environment::facts::Facts;
use crate::environment::finding::{Finding, told};
use crate::environment::probe::nvml::GpuReading;
use crate::facts::{self, Version, Weight};

/// From this share of its memory on a GPU counts as filled by others.
const FILLED: f64 = 0.5;
/// A GPU that works more than this, in percent, is under load.
const UNDER_LOAD: u32 = 50;
/// So many retired pages are DCGM's limit.
const MOST_RETIRED: u32 = 60;
/// candle compiles its bf16 kernels from this compute capability on.
const WITH_BF16: (u32, u32) = (8, 0);
/// So many degrees below the slowdown a GPU counts as hot.
const NEAR: u32 = 5;
/// Drivers that report memory by process wrongly: from the first to before the second.
const WRONG_PROCESSES: (Version, Version) =
    (Version::new([535, 43, 0]), Version::new([535, 86, 0]));

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
                    if found
                        .iter()
                        .all(|finding| finding.severity() < Severity::Warning)
                    {
                        found.push(Finding::new(&GPU_HEALTHY, summary(facts, gpu)));
                    }
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

fn errors(gpu: &GpuReading) -> Vec<Finding> {
    let mut found = Vec::new();
    match gpu.uncorrected {
        Ok((volatile, _)) if volatile > 0 => {
            let seen = format!("{volatile} uncorrected errors since the driver was loaded");
            found.push(Finding::new(&ECC_ERRORS, seen));
        }
        Ok((_, lifetime)) if lifetime > 0 => {
            found.push(Finding::new(
                &ECC_HISTORY,
                format!("{lifetime} uncorrected errors in its life"),
            ));
        }
        _ => {}
    }
    if gpu.remapped.is_ok_and(|rows| rows.failed) {
        found.push(Finding::new(&REMAP_FAILED, "row remapping has failed"));
    }
    let rows_pending = gpu.remapped.is_ok_and(|rows| rows.pending);
    if rows_pending || gpu.retirement_pending == Ok(true) {
        let what = if rows_pending {
            "row remapping"
        } else {
            "page retirement"
        };
        found.push(Finding::new(&REPAIR_PENDING, format!("{what} is pending")));
    }
    let retired = retired(gpu);
    if retired >= MOST_RETIRED {
        found.push(Finding::new(
            &MANY_RETIRED,
            format!("retired pages: {retired}"),
        ));
    }
    match gpu.ecc {
        Ok((true, true)) | Err(_) => {}
        Ok((now, next)) => {
            let word = |on| if on { "on" } else { "off" };
            let seen = format!("ECC is {}, after the next reset {}", word(now), word(next));
            found.push(Finding::new(&ECC_OFF, seen));
        }
    }
    found
}

fn speed(gpu: &GpuReading) -> Vec<Finding> {
    let mut found = Vec::new();
    if let (Ok(now), Ok(slowdown)) = (gpu.temperature, gpu.slowdown)
        && slowdown > 0
        && now.saturating_add(NEAR) >= slowdown
    {
        let seen = format!("{now}°C, and clocks go down at {slowdown}°C");
        found.push(Finding::new(&HOT, seen));
    }
    let (reasons, unknown) = facts::clock_reasons(gpu.clock_reasons.unwrap_or(0));
    for (weight, code) in [
        (Weight::Failure, &CLOCKS_HARDWARE),
        (Weight::Warning, &CLOCKS_SOFTWARE),
        (Weight::Note, &CLOCKS_OTHER),
    ] {
        let of_weight = reasons.iter().filter(|reason| reason.weight == weight);
        let mut texts: Vec<_> = of_weight
            .map(|reason| format!("{} ({:#x})", reason.text, reason.bit))
            .collect();
        if weight == Weight::Note && unknown != 0 {
            texts.push(format!("reasons that are not known here ({unknown:#x})"));
        }
        if !texts.is_empty() {
            found.push(Finding::new(code, texts.join(", ")));
        }
    }
    if let Some(count) = gpu.pcie_replays.ok().filter(|count| *count > 0) {
        found.push(Finding::new(
            &PCIE_REPLAYS,
            format!("repeated transfers: {count}"),
        ));
    }
    let is_working = gpu.utilization.is_ok_and(|percent| percent > UNDER_LOAD);
    let narrow = gpu.pcie_width.ok().filter(|(now, most)| now < most);
    // An idle GPU lowers its generation by itself; its width says something either way.
    let slow = gpu
        .pcie_generation
        .ok()
        .filter(|(now, most)| is_working && now < most);
    if narrow.is_some() || slow.is_some() {
        let mut seen = Vec::new();
        seen.extend(narrow.map(|(now, most)| format!("{now} of {most} lanes")));
        seen.extend(slow.map(|(now, most)| format!("generation {now} of {most}")));
        seen.push(if is_working { "under load" } else { "idle" }.to_owned());
        found.push(Finding::new(&PCIE_NARROW, seen.join(", ")));
    }
    found
}

fn memory(facts: &Facts, gpu: &GpuReading) -> Vec<Finding> {
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
    let affected =
        |version: &Version| *version >= WRONG_PROCESSES.0 && *version < WRONG_PROCESSES.1;
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
        told.push("numbers are the host's".to_owned());
    }
    let own = own.iter().filter_map(|(_, bytes)| *bytes);
    (own.fold(0, u64::saturating_add), Some(told.join(", ")))
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

fn retired(gpu: &GpuReading) -> u32 {
    let pages = gpu.retired.unwrap_or_default();
    pages.0.saturating_add(pages.1)
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
