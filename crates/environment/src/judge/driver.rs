//! What NVML and libcuda answer, and whether this container may use the driver.

use super::{Facts, Findings, Reply, answer, code};
use crate::facts::{self, Version};
use crate::probe::cuda::CudaDevice;

/// The first CUDA whose pools of device memory have a maximum size.
const POOLS_WITH_LIMITS: Version = Version([12, 2, 0]);
/// The status of an unknown error, of NVML and of CUDA.
const UNKNOWN: u32 = 999;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let kernel = facts.kernel.as_ref();
    if let Some(sign) = kernel.and_then(|kernel| kernel.container.as_deref()) {
        container(facts, sign, findings);
    }
    // A machine without a GPU may have the libraries without a driver, or a stub of libcuda.
    if facts.shows_gpu() {
        nvml(facts, findings);
        cuda(facts, findings);
    }
}

fn container(facts: &Facts, sign: &str, findings: &mut Findings) {
    let before = findings.0.len();
    if facts.lacks_container_runtime() {
        let seen = "the host has a GPU, the container has no /dev/nvidia*";
        let libcuda = match &facts.cuda {
            Reply::Missing(_) => " and no libcuda",
            _ => "",
        };
        let seen = format!("{sign}; {seen}{libcuda}");
        findings.add(code::CONTAINER_WITHOUT_RUNTIME, seen);
    }
    let by_gpu = facts.gpus().iter().any(|gpu| gpu.handle == Err(UNKNOWN));
    let by_nvml = by_gpu || facts.nvml.failed_with(UNKNOWN);
    let who = match (by_nvml, facts.cuda.failed_with(UNKNOWN)) {
        (true, true) => Some("NVML and cuInit return"),
        (true, false) => Some("NVML returns"),
        (false, true) => Some("cuInit returns"),
        (false, false) => None,
    };
    if let Some(who) = who {
        let seen = format!("{sign}; {who} {UNKNOWN}");
        findings.add(code::CONTAINER_LOST_DEVICES, seen);
    }
    if findings.0.len() == before {
        findings.add(code::CONTAINER, sign);
    }
}

fn nvml(facts: &Facts, findings: &mut Findings) {
    // Without a driver there is no NVML either, and that is a finding of its own.
    let has_driver = facts.kernel_is(|kernel| !kernel.nodes.is_empty() || kernel.passed_by_windows);
    match &facts.nvml {
        Reply::Missing(reason) if has_driver => findings.add(code::NVML_MISSING, reason),
        // Findings of their own: no module, a mismatch, a container that lost its devices.
        Reply::Failed("nvmlInit", 9 | 18) => {}
        Reply::Failed(_, UNKNOWN) if facts.is_container() => {}
        Reply::Failed(call, 12) => {
            findings.add(code::NVML_MISSING, answer(call, 12, facts::nvml(12)))
        }
        Reply::Failed(call, number) => {
            findings.answer(code::NVML_FAILS, (call, *number), facts::nvml)
        }
        _ => {}
    }
}

fn cuda(facts: &Facts, findings: &mut Findings) {
    match &facts.cuda {
        Reply::Works(devices) if !devices.is_empty() => started(facts, devices, findings),
        Reply::Works(_) => findings.add(
            code::NO_DEVICE,
            "cuInit returns 0, and cuDeviceGetCount counts 0 devices",
        ),
        Reply::Failed(call, number) => failed(facts, call, *number, findings),
        // The lack of a container runtime is a finding of its own.
        Reply::Missing(reason) if !facts.lacks_container_runtime() => {
            let finding = findings.begin(code::LIBCUDA_MISSING, reason);
            if facts.kernel_is(|kernel| kernel.apptainer) {
                finding.next_step = "start the container with `--nv`".into();
                finding.command = "apptainer exec --nv …".into();
            }
        }
        _ => {}
    }
}

fn started(facts: &Facts, devices: &[CudaDevice], findings: &mut Findings) {
    let version = facts.cuda_of_driver();
    if let Some(old) = version.filter(|version| *version < POOLS_WITH_LIMITS) {
        findings.add(code::OLD_POOLS, format!("the driver supports CUDA {old}"));
    }
    let version = Version::or_unknown(version);
    let names = devices.iter().filter_map(|device| device.name.as_deref());
    let mut names: Vec<_> = names.collect();
    names.dedup();
    let (count, names) = (devices.len(), names.join(", "));
    let seen = format!("CUDA {version}, devices: {count} ({names})");
    findings.add(code::CUDA_STARTS, seen);
}

fn failed(facts: &Facts, call: &str, number: u32, findings: &mut Findings) {
    let code = match number {
        34 => code::STUB,
        100 | 101 => code::NO_DEVICE,
        802 | 919 => code::FABRIC,
        804 => code::COMPAT,
        805..=809 => code::MPS,
        // The reason is a finding of its own.
        803 => return,
        UNKNOWN if facts.is_container() => return,
        _ => return findings.answer(code::CUDA_FAILS, (call, number), facts::cuda),
    };
    findings.add(code, answer(call, number, facts::cuda(number)));
}
