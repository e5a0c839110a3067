use crate::environment::code::{
    BUILT, KERNELS_FIT, MACHINE_CODE, PTX_TOO_NEW, PTX_UNKNOWN, PTX_WRONG_TARGET,
};
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::ptx::{Kernels, Target};
use crate::facts::{self, Release};

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![built()];
    for kernels in &facts.source.kernels {
        let mut found = Vec::new();
        found.extend(against_driver(facts, kernels));
        found.extend(against_gpus(facts, kernels));
        let is_comparable = facts.cuda_of_driver().is_some() && !gpus(facts).is_empty();
        if found.is_empty() && is_comparable {
            found.push(Finding::new(&KERNELS_FIT, described(kernels)));
        }
        findings.append(&mut found);
    }
    findings
}

fn built() -> Finding {
    let features: Vec<_> = [
        ("cuda", cfg!(feature = "cuda")),
        ("testing", cfg!(feature = "testing")),
    ]
    .into_iter()
    .filter_map(|(name, is_on)| is_on.then_some(name))
    .collect();
    let features = match features.as_slice() {
        [] => "no features".to_owned(),
        features => format!("features {}", features.join(", ")),
    };
    let where_to = match cfg!(feature = "cuda") {
        true => "",
        false => "; without `cuda` it runs on the CPU",
    };
    let version = env!("CARGO_PKG_VERSION");
    Finding::new(
        &BUILT,
        format!("candle-headroom {version} with {features}{where_to}"),
    )
}

fn described(kernels: &Kernels) -> String {
    let version = kernels
        .version
        .map(|version| format!("PTX {}", Release(version)));
    let target = kernels.target.map(|target| target.to_string());
    let known: Vec<_> = version.into_iter().chain(target).collect();
    match known.as_slice() {
        [] => format!("{}: neither version nor target can be read", kernels.name),
        known => format!("{}: {}", kernels.name, known.join(" for ")),
    }
}

fn against_driver(facts: &Facts, kernels: &Kernels) -> Option<Finding> {
    let needed = kernels.version.and_then(facts::cuda_of_ptx);
    let (Some(version), Some(needed)) = (kernels.version, needed) else {
        // A version behind the table's last is not judged, though probably too new for the driver as well.
        return Some(Finding::new(&PTX_UNKNOWN, described(kernels)));
    };
    let supported = facts
        .cuda_of_driver()
        .filter(|supported| *supported < needed)?;
    let packaged = facts::driver_of_cuda(needed);
    let seen = format!(
        "{}: PTX {} needs CUDA {}, the driver supports {}",
        kernels.name,
        Release(version),
        Release(needed),
        Release(supported)
    );
    let next = match packaged {
        Some(driver) => format!(
            "update the driver to {driver} or later, or build with CUDA {} or older",
            Release(supported)
        ),
        None => PTX_TOO_NEW.next_step.to_owned(),
    };
    Some(Finding::new(&PTX_TOO_NEW, seen).next(next))
}

fn against_gpus(facts: &Facts, kernels: &Kernels) -> Vec<Finding> {
    let Some(target) = kernels.target else {
        return Vec::new();
    };
    let gpus = gpus(facts).into_iter();
    gpus.filter_map(|(index, gpu)| {
        against_gpu(kernels, target, gpu).map(|finding| finding.on(index))
    })
    .collect()
}

fn against_gpu(kernels: &Kernels, target: Target, gpu: (u32, u32)) -> Option<Finding> {
    let (major, minor) = gpu;
    let command = format!("CUDA_COMPUTE_CAP={major}{minor} cargo build --features cuda");
    let seen = format!(
        "{} are for {target}, the GPU is {major}.{minor}",
        kernels.name
    );
    let code = match (target.runs_on(gpu), target.machine_code_runs_on(gpu)) {
        (false, _) => &PTX_WRONG_TARGET,
        (true, false) if kernels.with_machine_code => &MACHINE_CODE,
        (true, _) => return None,
    };
    Some(Finding::new(code, seen).by(command))
}

/// Numbers and compute capabilities of the GPUs that this process sees, or of all where it sees none.
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
    fn machine_code_is_for_its_major_number_alone() {
        let judged = |target: &str, with_machine_code, gpu| {
            let ptx = format!(".version 8.0\n.target {target}\n");
            let kernels = Kernels::read("candle's kernels", &ptx, with_machine_code);
            let target = kernels.target.unwrap();
            against_gpu(&kernels, target, gpu).map(|finding| finding.code.id)
        };
        assert_eq!(judged("sm_80", true, (8, 6)), None);
        assert_eq!(judged("sm_80", true, (9, 0)), Some("HR-311"));
        assert_eq!(judged("sm_80", false, (9, 0)), None);
        assert_eq!(judged("sm_90a", true, (10, 0)), Some("HR-309"));
    }
}
