use crate::environment::code;
use crate::environment::finding::Finding;
use crate::environment::probe::nvml::GpuReading;
use crate::facts::{self, Weight};

/// A GPU that is busier than this, in percent, is under load.
const UNDER_LOAD: u32 = 50;
/// DCGM's limit of retired pages.
const MOST_RETIRED: u32 = 60;
/// A GPU is hot from this many degrees below its slowdown temperature.
const NEAR: u32 = 5;

/// Errors of the GPU's memory.
pub(super) fn errors(gpu: &GpuReading) -> Vec<Finding> {
    let mut found = Vec::new();
    match gpu.uncorrected.unwrap_or_default() {
        (0, 0) => {}
        (0, lifetime) => {
            let seen = format!("{lifetime} uncorrected errors in the GPU's life");
            found.push(Finding::new(code::ECC_HISTORY, seen));
        }
        (volatile, _) => {
            let seen = format!("{volatile} uncorrected errors since the driver was loaded");
            found.push(Finding::new(code::ECC_ERRORS, seen));
        }
    }
    if gpu.remapped.is_ok_and(|rows| rows.failed) {
        let seen = "row remapping has failed";
        found.push(Finding::new(code::REMAP_FAILED, seen));
    }
    if gpu.remapped.is_ok_and(|rows| rows.pending) {
        let seen = "row remapping is pending";
        found.push(Finding::new(code::REPAIR_PENDING, seen));
    } else if gpu.retirement_pending == Ok(true) {
        let seen = "page retirement is pending";
        found.push(Finding::new(code::REPAIR_PENDING, seen));
    }
    let retired = retired(gpu);
    if retired >= MOST_RETIRED {
        let seen = format!("retired pages: {retired}");
        found.push(Finding::new(code::MANY_RETIRED, seen));
    }
    if let Ok((now, next)) = gpu.ecc
        && !(now && next)
    {
        let word = |on| if on { "on" } else { "off" };
        let (now, next) = (word(now), word(next));
        let seen = format!("ECC is {now}, after the next reset {next}");
        found.push(Finding::new(code::ECC_OFF, seen));
    }
    found
}

pub(super) fn retired(gpu: &GpuReading) -> u32 {
    let (double, single) = gpu.retired.unwrap_or_default();
    double.saturating_add(single)
}

/// What slows the GPU down.
pub(super) fn speed(gpu: &GpuReading) -> Vec<Finding> {
    let mut found = Vec::new();
    if let (Ok(now), Ok(slowdown)) = (gpu.temperature, gpu.slowdown)
        && slowdown > 0
        && now.saturating_add(NEAR) >= slowdown
    {
        let seen = format!("{now}°C; the clocks are lowered at {slowdown}°C");
        found.push(Finding::new(code::HOT, seen));
    }
    let (reasons, unknown) = facts::clock_reasons(gpu.clock_reasons.unwrap_or(0));
    for (weight, code) in [
        (Weight::Failure, code::CLOCKS_HARDWARE),
        (Weight::Warning, code::CLOCKS_SOFTWARE),
        (Weight::Note, code::CLOCKS_OTHER),
    ] {
        let of_weight = reasons.iter().filter(|reason| reason.weight == weight);
        let texts = of_weight.map(|reason| format!("{} ({:#x})", reason.text, reason.bit));
        let mut texts: Vec<_> = texts.collect();
        if weight == Weight::Note && unknown != 0 {
            texts.push(format!("unknown reasons ({unknown:#x})"));
        }
        if !texts.is_empty() {
            found.push(Finding::new(code, texts.join(", ")));
        }
    }
    if let Some(count) = gpu.pcie_replays.ok().filter(|count| *count > 0) {
        let seen = format!("repeated transfers: {count}");
        found.push(Finding::new(code::PCIE_REPLAYS, seen));
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
        found.push(Finding::new(code::PCIE_NARROW, seen.join(", ")));
    }
    found
}
