use crate::environment::code::{CONTAINER, CONTAINER_LOST_DEVICES, CONTAINER_WITHOUT_RUNTIME};
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::nvml::Readings;

const UNKNOWN: u32 = 999;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some((kernel, sign)) = facts
        .kernel
        .as_ref()
        .and_then(|kernel| Some((kernel, kernel.container.as_ref()?)))
    else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let host_has_gpu = kernel.module_loaded || !kernel.bus.is_empty();
    if host_has_gpu && kernel.nodes.is_empty() && facts.gpus().is_empty() {
        let seen = format!("{sign}; the host's driver is loaded, but there is no /dev/nvidia*");
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
