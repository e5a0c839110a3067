//! Findings about single GPUs: their health, clocks, connection to the bus, settings and other processes, by what NVML says of each.

use bytesize::ByteSize;
use nvml_wrapper::enum_wrappers::device::ComputeMode;

use super::{Facts, Findings, answer, code};
use crate::probe::nvml::GpuReading;
use crate::{FindingCode, Severity, facts, nvml};

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
                errors(gpu, findings);
                speed(gpu, findings);
                memory(facts, gpu, findings);
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
    findings.answer(kind(number), (call, number), facts::nvml);
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

/// A GPU that is busier than this, in percent, is under load.
const UNDER_LOAD: u32 = 50;
/// DCGM's limit of retired pages.
const MOST_RETIRED: u32 = 60;
/// A GPU is hot from this many degrees below its slowdown temperature.
const NEAR: u32 = 5;

/// Errors of the GPU's memory.
fn errors(gpu: &GpuReading, findings: &mut Findings) {
    let (code, count, since) = match gpu.uncorrected.unwrap_or_default() {
        (0, lifetime) => (code::ECC_HISTORY, lifetime, "in the GPU's life"),
        (volatile, _) => (code::ECC_ERRORS, volatile, "since the driver was loaded"),
    };
    if count > 0 {
        findings.add(code, format!("{count} uncorrected errors {since}"));
    }
    if gpu.remapped.is_ok_and(|rows| rows.failed) {
        findings.add(code::REMAP_FAILED, "row remapping has failed");
    }
    if gpu.remapped.is_ok_and(|rows| rows.pending) {
        findings.add(code::REPAIR_PENDING, "row remapping is pending");
    } else if gpu.retirement_pending == Ok(true) {
        findings.add(code::REPAIR_PENDING, "page retirement is pending");
    }
    if let Some(retired) = gpu.retired.ok().filter(|count| *count >= MOST_RETIRED) {
        findings.add(code::MANY_RETIRED, format!("retired pages: {retired}"));
    }
    if let Ok(modes @ (now, next)) = gpu.ecc
        && modes != (true, true)
    {
        let word = |on| if on { "on" } else { "off" };
        let (now, next) = (word(now), word(next));
        let seen = format!("ECC is {now}, after the next reset {next}");
        findings.add(code::ECC_OFF, seen);
    }
}

/// What slows the GPU down.
fn speed(gpu: &GpuReading, findings: &mut Findings) {
    if let (Ok(now), Ok(slowdown)) = (gpu.temperature, gpu.slowdown)
        && slowdown > 0
        && now.saturating_add(NEAR) >= slowdown
    {
        let seen = format!("{now}°C; the clocks are lowered at {slowdown}°C");
        findings.add(code::HOT, seen);
    }
    clocks(gpu.clock_reasons.unwrap_or(0), findings);
    if let Some(count) = gpu.pcie_replays.ok().filter(|count| *count > 0) {
        findings.add(code::PCIE_REPLAYS, format!("repeated transfers: {count}"));
    }
    let is_working = gpu.utilization.is_ok_and(|percent| percent > UNDER_LOAD);
    let mut seen = Vec::new();
    if let Some((now, most)) = gpu.pcie_width.ok().filter(|(now, most)| now < most) {
        seen.push(format!("{now} of {most} lanes"));
    }
    // An idle GPU lowers its generation by itself, but not its width.
    let generation = gpu.pcie_generation.ok().filter(|_| is_working);
    if let Some((now, most)) = generation.filter(|(now, most)| now < most) {
        seen.push(format!("generation {now} of {most}"));
    }
    if !seen.is_empty() {
        seen.push(if is_working { "under load" } else { "idle" }.to_owned());
        findings.list(code::PCIE_NARROW, seen);
    }
}

fn clocks(bits: u64, findings: &mut Findings) {
    let unknown = nvml::unknown_clock_reasons(bits);
    let unknown = (unknown != 0).then(|| format!("unknown reasons ({unknown:#x})"));
    for (severity, code, unknown) in [
        (Severity::Failure, code::CLOCKS_HARDWARE, None),
        (Severity::Warning, code::CLOCKS_SOFTWARE, None),
        (Severity::Note, code::CLOCKS_OTHER, unknown),
    ] {
        let reasons = nvml::clock_reasons(bits).filter(|reason| reason.1 == severity);
        let reasons = reasons.map(|(bit, _, text)| format!("{text} ({bit:#x})"));
        findings.list(code, reasons.chain(unknown));
    }
}

/// From this share of its memory on a GPU counts as filled by others.
const FILLED: f64 = 0.5;
/// The processes that are named.
const NAMED: usize = 8;

/// What others hold of the GPU's memory.
fn memory(facts: &Facts, gpu: &GpuReading, findings: &mut Findings) {
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
