use super::{Facts, Findings, code};
use crate::Gpu;
use crate::facts;
use crate::probe::ptx::Kernels;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let build = match cfg!(feature = "cuda") {
        true => "with the feature `cuda`",
        false => "without the feature `cuda`, which runs on the CPU",
    };
    let version = env!("CARGO_PKG_VERSION");
    findings.add(code::BUILT, format!("candle-headroom {version} {build}"));
    let mut gpus = facts.all_gpus();
    if gpus.iter().any(|gpu| gpu.visible) {
        gpus.retain(|gpu| gpu.visible);
    }
    gpus.retain(|gpu| gpu.compute_capability.is_some());
    for kernels in &facts.source.kernels {
        let before = findings.0.len();
        against_driver(facts, kernels, findings);
        for gpu in &gpus {
            against_gpu(kernels, gpu, findings);
        }
        let is_comparable = facts.cuda_of_driver().is_some() && !gpus.is_empty();
        if findings.0.len() == before && is_comparable {
            findings.add(code::KERNELS_FIT, described(kernels));
        }
    }
}

fn described(kernels: &Kernels) -> String {
    let name = &kernels.name;
    match (kernels.version, kernels.target) {
        (Some(version), Some(target)) => format!("{name}: PTX {version} for {target}"),
        (Some(version), None) => format!("{name}: PTX {version}"),
        (None, Some(target)) => format!("{name}: {target}"),
        (None, None) => format!("{name}: no version and no target can be read"),
    }
}

fn against_driver(facts: &Facts, kernels: &Kernels, findings: &mut Findings) {
    let name = &kernels.name;
    let needed = kernels.version.and_then(facts::cuda_of_ptx);
    let (Some(version), Some(needed)) = (kernels.version, needed) else {
        // A version after the table's last one is probably too new for the driver as well, but that is not known.
        return findings.add(code::PTX_UNKNOWN, described(kernels));
    };
    if let Some(cuda) = facts.cuda_of_driver()
        && cuda < needed
    {
        let seen = format!("{name}: PTX {version} needs CUDA {needed}, the driver supports {cuda}");
        let finding = findings.begin(code::PTX_TOO_NEW, seen);
        if let Some(driver) = facts::driver_of_cuda(needed) {
            let step = "update the driver to";
            let step = format!("{step} {driver} or later, or build with CUDA {cuda} or older");
            finding.next_step = step.into();
        }
    }
}

fn against_gpu(kernels: &Kernels, gpu: &Gpu, findings: &mut Findings) {
    let (Some(target), Some(capability)) = (kernels.target, gpu.compute_capability) else {
        return;
    };
    let machine_code_runs = !kernels.with_machine_code || target.machine_code_runs_on(capability);
    let code = match target.runs_on(capability) {
        false => code::PTX_WRONG_TARGET,
        true if !machine_code_runs => code::MACHINE_CODE,
        true => return,
    };
    let (name, (major, minor)) = (&kernels.name, capability);
    let seen = format!("{name} are for {target}, the GPU is {major}.{minor}");
    let finding = findings.begin(code, seen);
    finding.command = format!("CUDA_COMPUTE_CAP={major}{minor} cargo build --features cuda").into();
    finding.set_gpu(gpu.index);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_runs_on_its_major_number_only() {
        let judged = |target: &str, with_machine_code, capability| {
            let ptx = format!(".version 8.0\n.target {target}\n");
            let kernels = Kernels::read("candle's kernels", &ptx, with_machine_code);
            let gpu = Gpu {
                compute_capability: Some(capability),
                ..Gpu::default()
            };
            let mut findings = Findings::default();
            against_gpu(&kernels, &gpu, &mut findings);
            findings.0.first().map(|finding| finding.code.id)
        };
        assert_eq!(judged("sm_80", true, (8, 6)), None);
        assert_eq!(judged("sm_80", true, (9, 0)), Some("HR-311"));
        assert_eq!(judged("sm_80", false, (9, 0)), None);
        assert_eq!(judged("sm_90a", true, (10, 0)), Some("HR-309"));
    }
}
