use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::{Finding, answer};
use crate::environment::probe::driver::CudaDevice;
use crate::facts::{self, Release, Version};

/// The first CUDA whose pools of device memory have a maximum size.
const POOLS_WITH_LIMITS: Version = Version::new([12, 2, 0]);

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let cuda = match &facts.cuda {
        Some(Ok(cuda)) => cuda,
        // The lack of a container runtime is a finding of its own.
        Some(Err(reason)) if facts.shows_gpu() && !facts.lacks_container_runtime() => {
            return vec![missing(facts, reason)];
        }
        _ => return Vec::new(),
    };
    match (&cuda.init, &cuda.devices) {
        (Err(status), _) => failed(facts, "cuInit", *status),
        (_, Err(status)) => failed(facts, "cuDeviceGetCount", *status),
        (Ok(()), Ok(devices)) if !devices.is_empty() => started(facts, devices),
        _ if facts.shows_gpu() => {
            let seen = "cuInit returns 0, and cuDeviceGetCount counts 0 devices";
            vec![Finding::new(code::NO_DEVICE, seen)]
        }
        _ => Vec::new(),
    }
}

fn missing(facts: &Facts, reason: &str) -> Finding {
    let finding = Finding::new(code::LIBCUDA_MISSING, reason);
    match facts.kernel.as_ref().is_some_and(|kernel| kernel.apptainer) {
        true => finding
            .next("start the container with `--nv`")
            .by("apptainer exec --nv …"),
        false => finding,
    }
}

fn started(facts: &Facts, devices: &[CudaDevice]) -> Vec<Finding> {
    let version = facts.cuda_of_driver();
    let mut findings = Vec::new();
    if let Some(old) = version.filter(|version| *version < POOLS_WITH_LIMITS) {
        let seen = format!("the driver supports CUDA {}", Release(old));
        findings.push(Finding::new(code::OLD_POOLS, seen));
    }
    let version = version.map(|version| Release(version).to_string());
    let version = version.unwrap_or("of an unknown version".to_owned());
    let names = devices.iter().filter_map(|device| device.name.as_deref());
    let mut names: Vec<_> = names.collect();
    names.dedup();
    let (count, names) = (devices.len(), names.join(", "));
    let seen = format!("CUDA {version}, devices: {count} ({names})");
    findings.push(Finding::new(code::CUDA_STARTS, seen));
    findings
}

fn failed(facts: &Facts, call: &str, number: u32) -> Vec<Finding> {
    let status = facts::cuda(number);
    let code = match number {
        // A machine without a GPU may have libcuda, or a stub of it.
        _ if !facts.shows_gpu() => return Vec::new(),
        34 => code::STUB,
        100 | 101 => code::NO_DEVICE,
        802 | 919 => code::FABRIC,
        804 => code::COMPAT,
        805..=809 => code::MPS,
        // The reason is a finding of its own.
        803 => return Vec::new(),
        999 if facts.is_container() => return Vec::new(),
        _ => code::CUDA_FAILS,
    };
    let finding = Finding::new(code, answer(call, number, status));
    match code == code::CUDA_FAILS {
        true => vec![finding.advised(status)],
        false => vec![finding],
    }
}
