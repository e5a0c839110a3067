use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::ptx::{Kernels, Target};
use crate::facts::{self, Release};

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![built()];
    let gpus = gpus(facts);
    for kernels in &facts.source.kernels {
        let mut found = Vec::new();
        found.extend(against_driver(facts, kernels));
        found.extend(gpus.iter().filter_map(|(index, gpu)| {
            let finding = against_gpu(kernels, kernels.target?, *gpu)?;
            Some(finding.on(*index))
        }));
        let is_comparable = facts.cuda_of_driver().is_some() && !gpus.is_empty();
        if found.is_empty() && is_comparable {
            found.push(Finding::new(code::KERNELS_FIT, described(kernels)));
        }
        findings.append(&mut found);
    }
    findings
}

fn built() -> Finding {
    let features = match (cfg!(feature = "cuda"), cfg!(feature = "testing")) {
        (true, true) => "features cuda, testing",
        (true, false) => "features cuda",
        (false, true) => "features testing; without `cuda` it runs on the CPU",
        (false, false) => "no features; without `cuda` it runs on the CPU",
    };
    let version = env!("CARGO_PKG_VERSION");
    Finding::new(
        code::BUILT,
        format!("candle-headroom {version} with {features}"),
    )
}

fn described(kernels: &Kernels) -> String {
    let version = kernels.version.map(Release);
    match (version, kernels.target) {
        (Some(version), Some(target)) => format!("{}: PTX {version} for {target}", kernels.name),
        (Some(version), None) => format!("{}: PTX {version}", kernels.name),
        (None, Some(target)) => format!("{}: {target}", kernels.name),
        (None, None) => format!("{}: no version and no target can be read", kernels.name),
    }
}

fn against_driver(facts: &Facts, kernels: &Kernels) -> Option<Finding> {
    let needed = kernels.version.and_then(facts::cuda_of_ptx);
    let (Some(version), Some(needed)) = (kernels.version, needed) else {
        // A version after the table's last one is probably too new for the driver as well, but that is not known.
        return Some(Finding::new(code::PTX_UNKNOWN, described(kernels)));
    };
    let supported = facts.cuda_of_driver();
    let supported = supported.filter(|supported| *supported < needed)?;
    let seen = format!(
        "{}: PTX {} needs CUDA {}, the driver supports {}",
        kernels.name,
        Release(version),
        Release(needed),
        Release(supported)
    );
    let finding = Finding::new(code::PTX_TOO_NEW, seen);
    let supported = Release(supported);
    Some(match facts::driver_of_cuda(needed) {
        Some(driver) => finding.next(format!(
            "update the driver to {driver} or later, or build with CUDA {supported} or older"
        )),
        None => finding,
    })
}

fn against_gpu(kernels: &Kernels, target: Target, gpu: (u32, u32)) -> Option<Finding> {
    let code = match (target.runs_on(gpu), target.machine_code_runs_on(gpu)) {
        (false, _) => code::PTX_WRONG_TARGET,
        (true, false) if kernels.with_machine_code => code::MACHINE_CODE,
        (true, _) => return None,
    };
    let (name, (major, minor)) = (&kernels.name, gpu);
    let seen = format!("{name} are for {target}, the GPU is {major}.{minor}");
    let command = format!("CUDA_COMPUTE_CAP={major}{minor} cargo build --features cuda");
    Some(Finding::new(code, seen).by(command))
}

/// Indexes and compute capabilities of the GPUs that this process sees, or of all if it sees none.
fn gpus(facts: &Facts) -> Vec<(u32, (u32, u32))> {
    let gpus = facts.all_gpus();
    let sees_any = gpus.iter().any(|gpu| gpu.visible);
    let seen = gpus.iter().filter(|gpu| gpu.visible || !sees_any);
    seen.filter_map(|gpu| Some((gpu.index, gpu.compute_capability?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_runs_on_its_major_number_only() {
        let judged = |target: &str, with_machine_code, gpu| {
            let ptx = format!(".version 8.0\n.target {target}\n");
            let kernels = Kernels::read("candle's kernels", &ptx, with_machine_code);
            against_gpu(&kernels, kernels.target?, gpu).map(|finding| finding.code.id)
        };
        assert_eq!(judged("sm_80", true, (8, 6)), None);
        assert_eq!(judged("sm_80", true, (9, 0)), Some("HR-311"));
        assert_eq!(judged("sm_80", false, (9, 0)), None);
        assert_eq!(judged("sm_90a", true, (10, 0)), Some("HR-309"));
    }
}
