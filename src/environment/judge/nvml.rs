use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::{Finding, answer};
use crate::facts;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    // A machine without a GPU may have the library without a driver.
    if !facts.shows_gpu() {
        return Vec::new();
    }
    let (call, number) = match &facts.nvml {
        Some(Ok(readings)) => match (&readings.init, &readings.gpus) {
            // Findings of their own: no module, a mismatch, a container that lost its devices.
            (Err(9 | 18), _) => return Vec::new(),
            (Err(999), _) if facts.is_container() => return Vec::new(),
            (Err(number), _) => ("nvmlInit", *number),
            (_, Err(number)) => ("nvmlDeviceGetCount", *number),
            _ => return Vec::new(),
        },
        // Without a driver there is no NVML either, and that is a finding of its own.
        Some(Err(reason)) if has_driver(facts) => {
            return vec![Finding::new(code::NVML_MISSING, reason.clone())];
        }
        _ => return Vec::new(),
    };
    let status = facts::nvml(number);
    let seen = answer(call, number, status);
    match number {
        12 => vec![Finding::new(code::NVML_MISSING, seen)],
        _ => vec![Finding::new(code::NVML_FAILS, seen).advised(status)],
    }
}

fn has_driver(facts: &Facts) -> bool {
    let kernel = facts.kernel.as_ref();
    kernel.is_some_and(|kernel| !kernel.nodes.is_empty() || kernel.is_passed_by_windows())
}
