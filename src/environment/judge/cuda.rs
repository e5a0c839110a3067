use crate::environment::code::{
    COMPAT, CUDA_FAILS, CUDA_STARTS, FABRIC, FindingCode, LIBCUDA_MISSING, MPS, NO_DEVICE,
    OLD_POOLS, STUB,
};
use crate::environment::facts::Facts;
use crate::environment::finding::{Finding, told};
use crate::facts::{self, Release, Version};

/// From this one on a pool of device memory has a greatest size.
const POOLS_WITH_LIMITS: Version = Version::new([12, 2, 0]);

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let cuda = match &facts.cuda {
        None => return Vec::new(),
        Some(Err(_)) if !facts.shows_gpu() => return Vec::new(),
        // What it comes from is a finding already.
        Some(Err(_)) if facts.lacks_container_runtime() => return Vec::new(),
        Some(Err(reason)) => {
            let finding = Finding::new(&LIBCUDA_MISSING, reason.clone());
            let is_apptainer = facts.kernel.as_ref().is_some_and(|kernel| kernel.apptainer);
            return vec![match is_apptainer {
                true => finding
                    .next("start the container with `--nv`")
                    .by("apptainer exec --nv …"),
                false => finding,
            }];
        }
        Some(Ok(cuda)) => cuda,
    };
    let (code, call) = match (&cuda.init, &cuda.devices) {
        (Err(code), _) => (*code, "cuInit answers"),
        (_, Err(code)) => (*code, "cuDeviceGetCount answers"),
        (Ok(()), Ok(devices)) if devices.is_empty() && !facts.shows_gpu() => return Vec::new(),
        (Ok(()), Ok(devices)) if devices.is_empty() => {
            return vec![Finding::new(
                &NO_DEVICE,
                "cuInit answers 0, and then counts 0 devices",
            )];
        }
        (Ok(()), Ok(devices)) => {
            let version = facts.cuda_of_driver();
            let mut findings = Vec::new();
            if let Some(old) = version.filter(|version| *version < POOLS_WITH_LIMITS) {
                let seen = format!("it supports CUDA {}", Release(old));
                findings.push(Finding::new(&OLD_POOLS, seen));
            }
            let version = version.map_or("of an unknown version".to_owned(), |version| {
                Release(version).to_string()
            });
            let mut names: Vec<_> = devices
                .iter()
                .filter_map(|device| device.name.as_deref())
                .collect();
            names.dedup();
            let seen = format!(
                "CUDA {version}, devices: {} ({})",
                devices.len(),
                names.join(", ")
            );
            findings.push(Finding::new(&CUDA_STARTS, seen));
            return findings;
        }
    };
    let status = facts::cuda(code);
    let seen = told(call, code, status);
    match own_finding(code, facts) {
        Of::Another => Vec::new(),
        Of::Code(code) => vec![Finding::new(code, seen)],
        Of::Table => vec![Finding::new(&CUDA_FAILS, seen).advised(status)],
    }
}

enum Of {
    Code(&'static FindingCode),
    /// The reason is a finding already.
    Another,
    Table,
}

fn own_finding(code: u32, facts: &Facts) -> Of {
    match code {
        // A machine without a GPU may have libcuda all the same, or a stub of it.
        _ if !facts.shows_gpu() => Of::Another,
        34 => Of::Code(&STUB),
        100 | 101 => Of::Code(&NO_DEVICE),
        802 | 919 => Of::Code(&FABRIC),
        803 => Of::Another,
        804 => Of::Code(&COMPAT),
        805..=809 => Of::Code(&MPS),
        999 if facts.is_container() => Of::Another,
        _ => Of::Table,
    }
}
