use super::{Findings, GpuReading, code};
use crate::facts::{self, Weight};

/// A GPU that is busier than this, in percent, is under load.
const UNDER_LOAD: u32 = 50;
/// DCGM's limit of retired pages.
const MOST_RETIRED: u32 = 60;
/// A GPU is hot from this many degrees below its slowdown temperature.
const NEAR: u32 = 5;

/// Errors of the GPU's memory.
pub(super) fn errors(gpu: &GpuReading, findings: &mut Findings) {
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
    let unknown = facts::unknown_clock_reasons(bits);
    let unknown = (unknown != 0).then(|| format!("unknown reasons ({unknown:#x})"));
    for (weight, code, unknown) in [
        (Weight::Failure, code::CLOCKS_HARDWARE, None),
        (Weight::Warning, code::CLOCKS_SOFTWARE, None),
        (Weight::Note, code::CLOCKS_OTHER, unknown),
    ] {
        let reasons = facts::clock_reasons(bits).filter(|reason| reason.weight == weight);
        let reasons = reasons.map(|reason| format!("{} ({:#x})", reason.text, reason.bit));
        findings.list(code, reasons.chain(unknown));
    }
}
