use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;

const UNKNOWN: u32 = 999;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let kernel = facts.kernel.as_ref();
    let Some(sign) = kernel.and_then(|kernel| kernel.container.as_ref()) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    if facts.lacks_container_runtime() {
        let libcuda = match &facts.cuda {
            Some(Err(_)) => " and no libcuda",
            _ => "",
        };
        let seen =
            format!("{sign}; the host has a GPU, the container has no /dev/nvidia*{libcuda}");
        findings.push(Finding::new(code::CONTAINER_WITHOUT_RUNTIME, seen));
    }
    let by_nvml = facts.nvml_init() == Some(Err(UNKNOWN))
        || facts.gpus().iter().any(|gpu| gpu.handle == Err(UNKNOWN));
    let by_cuda = facts.cuda_init() == Some(Err(UNKNOWN));
    if by_nvml || by_cuda {
        let who = match (by_nvml, by_cuda) {
            (true, true) => "NVML and cuInit return",
            (true, false) => "NVML returns",
            (false, _) => "cuInit returns",
        };
        let seen = format!("{sign}; {who} {UNKNOWN}");
        findings.push(Finding::new(code::CONTAINER_LOST_DEVICES, seen));
    }
    if findings.is_empty() {
        findings.push(Finding::new(code::CONTAINER, sign.clone()));
    }
    findings
}
