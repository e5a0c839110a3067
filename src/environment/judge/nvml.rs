use crate::environment::code::{NVML_FAILS, NVML_MISSING};
use crate::environment::facts::Facts;
use crate::environment::finding::{Finding, told};
use crate::environment::probe::nvml::Readings;
use crate::facts;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    // A machine without a GPU may have a library without a driver.
    if !facts.shows_gpu() {
        return Vec::new();
    }
    let failure = match &facts.nvml {
        None => return Vec::new(),
        // Without the driver there is no NVML either, and that is a finding already.
        Some(Err(_)) if !has_driver(facts) => return Vec::new(),
        Some(Err(reason)) => return vec![Finding::new(&NVML_MISSING, reason.clone())],
        Some(Ok(Readings {
            init: Err(code), ..
        })) => ("nvmlInit", *code),
        Some(Ok(Readings {
            gpus: Err(code), ..
        })) => ("nvmlDeviceGetCount", *code),
        Some(Ok(_)) => return Vec::new(),
    };
    match failure {
        // Findings of their own: no module, a mismatch, a container that lost its devices.
        ("nvmlInit", 9 | 18) => Vec::new(),
        ("nvmlInit", 999) if facts.is_container() => Vec::new(),
        (_, 12) => vec![Finding::new(
            &NVML_MISSING,
            told("nvmlInit answers", 12, facts::nvml(12)),
        )],
        (call, code) => {
            let status = facts::nvml(code);
            let seen = told(&format!("{call} answers"), code, status);
            vec![Finding::new(&NVML_FAILS, seen).advised(status)]
        }
    }
}

fn has_driver(facts: &Facts) -> bool {
    let kernel = facts.kernel.as_ref();
    kernel.is_some_and(|kernel| !kernel.nodes.is_empty() || kernel.passed_by_windows())
}
