use crate::environment::code::{
    CLOCKS_HARDWARE, CLOCKS_OTHER, CLOCKS_SOFTWARE, ECC_ERRORS, ECC_HISTORY, ECC_OFF, HOT,
    MANY_RETIRED, PCIE_NARROW, PCIE_REPLAYS, REMAP_FAILED, REPAIR_PENDING,
};
use crate::environment::finding::Finding;
use crate::environment::probe::nvml::GpuReading;
use crate::facts::{self, Weight};

/// A GPU that works more than this, in percent, is under load.
const UNDER_LOAD: u32 = 50;
/// So many retired pages are DCGM's limit.
const MOST_RETIRED: u32 = 60;
/// So many degrees below the slowdown a GPU counts as hot.
const NEAR: u32 = 5;

/// What the GPU's memory has been through.
pub(super) fn errors(gpu: &GpuReading) -> Vec<Finding> {
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

pub(super) fn retired(gpu: &GpuReading) -> u32 {
    let pages = gpu.retired.unwrap_or_default();
    pages.0.saturating_add(pages.1)
}

/// What makes the GPU slower than it could be.
pub(super) fn speed(gpu: &GpuReading) -> Vec<Finding> {
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
