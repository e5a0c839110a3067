use crate::environment::code;
use crate::environment::finding::Findings;
use crate::environment::probe::nvml::GpuReading;
use crate::facts::{self, Weight};

/// A GPU that is busier than this, in percent, is under load.
const UNDER_LOAD: u32 = 50;
/// DCGM's limit of retired pages.
const MOST_RETIRED: u32 = 60;
/// A GPU is hot from this many degrees below its slowdown temperature.
const NEAR: u32 = 5;

/// Errors of the GPU's memory.
pub(super) fn errors(gpu: &GpuReading, findings: &mut Findings) {
    match gpu.uncorrected.unwrap_or_default() {
        (0, 0) => {}
        (0, lifetime) => {
            let seen = format!("{lifetime} uncorrected errors in the GPU's life");
            findings.add(code::ECC_HISTORY, seen);
        }
        (volatile, _) => {
            let seen = format!("{volatile} uncorrected errors since the driver was loaded");
            findings.add(code::ECC_ERRORS, seen);
        }
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
    if let Ok((now, next)) = gpu.ecc
        && !(now && next)
    {
        let word = |on| if on { "on" } else { "off" };
        let (now, next) = (word(now), word(next));
        let seen = format!("ECC is {now}, after the next reset {next}");
        findings.add(code::ECC_OFF, seen);
    }
}

/// What slows the GPU down.
pub(super) fn speed(gpu: &GpuReading, findings: &mut Findings) {
    if let (Ok(now), Ok(slowdown)) = (gpu.temperature, gpu.slowdown)
        && slowdown > 0
        && now.saturating_add(NEAR) >= slowdown
    {
        let seen = format!("{now}°C; the clocks are lowered at {slowdown}°C");
        findings.add(code::HOT, seen);
    }
    clocks(gpu.clock_reasons.unwrap_or(0), findings);
    if let Some(count) = gpu.pcie_replays.ok().filter(|count| *count > 0) {
        let seen = format!("repeated transfers: {count}");
        findings.add(code::PCIE_REPLAYS, seen);
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
        findings.add(code::PCIE_NARROW, seen.join(", "));
    }
}

fn clocks(bits: u64, findings: &mut Findings) {
    let unknown = facts::unknown_clock_reasons(bits);
    for (weight, code) in [
        (Weight::Failure, code::CLOCKS_HARDWARE),
        (Weight::Warning, code::CLOCKS_SOFTWARE),
        (Weight::Note, code::CLOCKS_OTHER),
    ] {
        let reasons = facts::clock_reasons(bits).filter(|reason| reason.weight == weight);
        let texts = reasons.map(|reason| format!("{} ({:#x})", reason.text, reason.bit));
        let mut texts: Vec<_> = texts.collect();
        if weight == Weight::Note && unknown != 0 {
            texts.push(format!("unknown reasons ({unknown:#x})"));
        }
        if !texts.is_empty() {
            findings.add(code, texts.join(", "));
        }
    }
}
