use crate::environment::code::{CONTAINER, CONTAINER_LOST_DEVICES, CONTAINER_WITHOUT_RUNTIME};
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::nvml::Readings;

const UNKNOWN: u32 = 999;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let kernel = facts.kernel.as_ref();
    let Some(sign) = kernel.and_then(|kernel| kernel.container.as_ref()) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    if facts.lacks_container_runtime() {
        let libcuda = match &facts.cuda {
            Some(Err(_)) => ", and no libcuda",
            _ => "",
        };
        let seen = format!("{sign}; the host has a GPU, in here there is no /dev/nvidia*{libcuda}");
        findings.push(Finding::new(&CONTAINER_WITHOUT_RUNTIME, seen));
    }
    let by_nvml = matches!(
        &facts.nvml,
        Some(Ok(Readings {
            init: Err(UNKNOWN),
            ..
        }))
    ) || facts.gpus().iter().any(|gpu| gpu.handle == Err(UNKNOWN));
    let by_cuda = matches!(&facts.cuda, Some(Ok(cuda)) if cuda.init == Err(UNKNOWN));
    if by_nvml || by_cuda {
        let who = match (by_nvml, by_cuda) {
            (true, true) => "NVML and cuInit answer",
            (true, false) => "NVML answers",
            (false, _) => "cuInit answers",
        };
        findings.push(Finding::new(
            &CONTAINER_LOST_DEVICES,
            format!("{sign}; {who} {UNKNOWN}"),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::new(&CONTAINER, sign.clone()));
    }
    findings
}
