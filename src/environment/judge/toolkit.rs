use crate::environment::code::{
    COMPUTE_CAP, NO_COMPILER, NO_TOOLKIT, TOOLKIT, TOOLKIT_NOWHERE, TOOLKIT_TOO_NEW,
    TOOLKITS_DISAGREE,
};
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
    match (&toolkit.nvcc, toolkit.version) {
        (None, _) => findings.push(Finding::new(&NO_TOOLKIT, "no nvcc on PATH")),
        (Some(nvcc), version) => {
            let version = version.map_or("of an unknown version".to_owned(), |version| {
                Release(version).to_string()
            });
            findings.push(Finding::new(
                &TOOLKIT,
                format!("{}, CUDA {version}", nvcc.display()),
            ));
            if toolkit.compiler.is_none() {
                findings.push(Finding::new(
                    &NO_COMPILER,
                    "no c++, g++, clang++ or cc on PATH",
                ));
            }
        }
    }
    findings.extend(too_new(facts, toolkit));
    findings.extend(compute_cap(facts));
    findings
}

fn variables(toolkit: &Toolkit) -> Vec<Finding> {
    let mut findings: Vec<_> = toolkit
        .variables
        .iter()
        .filter(|(_, _, leads)| leads.is_none())
        .map(|(name, value, _)| Finding::new(&TOOLKIT_NOWHERE, format!("{name}={value}")))
        .collect();
    let named = toolkit
        .variables
        .iter()
        .filter_map(|(name, _, leads)| Some((*name, leads.clone()?)));
    let all: Vec<_> = named
        .chain(toolkit.root().map(|root| ("PATH", root)))
        .collect();
    if all.windows(2).any(|pair| pair[0].1 != pair[1].1) {
        let told: Vec<_> = all
            .iter()
            .map(|(name, root)| format!("{name}: {}", root.display()))
            .collect();
        findings.push(Finding::new(&TOOLKITS_DISAGREE, told.join(", ")));
    }
    findings
}

fn too_new(facts: &Facts, toolkit: &Toolkit) -> Option<Finding> {
    let (version, supported) = (toolkit.version?, facts.cuda_of_driver()?);
    let packaged =
        facts::driver_of_cuda(version).map(|driver| format!(", whose own driver is {driver}"));
    (version > supported).then(|| {
        let seen = format!(
            "CUDA {}{}; the driver supports {}",
            Release(version),
            packaged.unwrap_or_default(),
            Release(supported)
        );
        Finding::new(&TOOLKIT_TOO_NEW, seen)
    })
}

fn compute_cap(facts: &Facts) -> Option<Finding> {
    let value = facts.source.variable("CUDA_COMPUTE_CAP")?;
    let gpus = facts.gpus().iter();
    let mut gpus = gpus.filter_map(|gpu| Some((gpu.index, facts.capability(gpu)?)));
    let Some(target) = Target::parse(value) else {
        return Some(Finding::new(
            &COMPUTE_CAP,
            format!("CUDA_COMPUTE_CAP={value} is no number such as 90"),
        ));
    };
    let (index, (major, minor)) = gpus.find(|(_, gpu)| !target.runs_on(*gpu))?;
    let seen = format!("CUDA_COMPUTE_CAP={value}, GPU {index} is {major}.{minor}");
    Some(Finding::new(&COMPUTE_CAP, seen).on(index))
}
