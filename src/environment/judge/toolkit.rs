use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::ptx::Target;
use crate::environment::probe::toolkit::Toolkit;
use crate::facts::{self, Release};

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some(toolkit) = &facts.toolkit else {
        return Vec::new();
    };
    let mut findings = variables(toolkit);
    match &toolkit.nvcc {
        None => findings.push(Finding::new(code::NO_TOOLKIT, "no nvcc on PATH")),
        Some(nvcc) => {
            let version = toolkit.version.map(|version| Release(version).to_string());
            let version = version.unwrap_or("of an unknown version".to_owned());
            let seen = format!("{}, CUDA {version}", nvcc.display());
            findings.push(Finding::new(code::TOOLKIT, seen));
            if toolkit.compiler.is_none() {
                let seen = "no c++, g++, clang++ or cc on PATH";
                findings.push(Finding::new(code::NO_COMPILER, seen));
            }
        }
    }
    findings.extend(too_new(facts, toolkit));
    findings.extend(compute_cap(facts));
    findings
}

fn variables(toolkit: &Toolkit) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut named = Vec::new();
    for (name, value, folder) in &toolkit.variables {
        match folder {
            Some(folder) => named.push((*name, folder.clone())),
            None => {
                let seen = format!("{name}={value}");
                findings.push(Finding::new(code::TOOLKIT_NOWHERE, seen));
            }
        }
    }
    named.extend(toolkit.root().map(|root| ("PATH", root)));
    if named.windows(2).any(|pair| pair[0].1 != pair[1].1) {
        let named = named
            .iter()
            .map(|(name, root)| format!("{name}: {}", root.display()));
        let seen = named.collect::<Vec<_>>().join(", ");
        findings.push(Finding::new(code::TOOLKITS_DISAGREE, seen));
    }
    findings
}

fn too_new(facts: &Facts, toolkit: &Toolkit) -> Option<Finding> {
    let (version, supported) = (toolkit.version?, facts.cuda_of_driver()?);
    if version <= supported {
        return None;
    }
    let driver = facts::driver_of_cuda(version);
    let driver = driver.map(|driver| format!(", packaged with driver {driver}"));
    let (version, driver) = (Release(version), driver.unwrap_or_default());
    let seen = format!(
        "CUDA {version}{driver}; the driver supports {}",
        Release(supported)
    );
    Some(Finding::new(code::TOOLKIT_TOO_NEW, seen))
}

fn compute_cap(facts: &Facts) -> Option<Finding> {
    let value = facts.source.variable("CUDA_COMPUTE_CAP")?;
    let Some(target) = Target::parse(value) else {
        let seen = format!("CUDA_COMPUTE_CAP={value} is not a number such as 90");
        return Some(Finding::new(code::COMPUTE_CAP, seen));
    };
    let gpus = facts.gpus().iter();
    let mut gpus = gpus.filter_map(|gpu| Some((gpu.index, facts.capability(gpu)?)));
    let (index, (major, minor)) = gpus.find(|(_, gpu)| !target.runs_on(*gpu))?;
    let seen = format!("CUDA_COMPUTE_CAP={value}, GPU {index} is {major}.{minor}");
    Some(Finding::new(code::COMPUTE_CAP, seen).on(index))
}
