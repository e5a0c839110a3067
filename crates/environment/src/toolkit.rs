//! The CUDA toolkit that a build would use: the one of `nvcc` on `PATH`, or else of the variables that name its folder. Nothing is run: the version
//! is in the toolkit's record, or in its headers.

use std::path::Path;

use super::code::around;
use super::source::Target;
use super::{Facts, Findings, Source, code};
use crate::facts::{self, Version};

/// Variables that name the toolkit's folder.
pub(super) const VARIABLES: [&str; 4] = [
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CUDA_TOOLKIT_ROOT_DIR",
];

/// The version of the CUDA toolkit that a build would use.
pub(super) fn look(source: &Source) -> (Option<Version>, Findings) {
    let mut findings = Findings::default();
    let mut roots = Vec::new();
    for name in VARIABLES {
        match source.variable(name).unwrap_or_default() {
            "" => {}
            value if source.exists(value) => roots.push((name, source.resolved(value.as_ref()))),
            value => findings.add(code::TOOLKIT_NOWHERE, format!("{name}={value}")),
        }
    }
    let nvcc = source.program("nvcc").map(|path| source.resolved(&path));
    let by_path = nvcc.as_deref().and_then(|nvcc| nvcc.parent()?.parent());
    let used = by_path.or(roots.first().map(|(_, root)| root.as_path()));
    let version = used.and_then(|root| version(source, root));
    roots.extend(by_path.map(|root| ("PATH", root.to_owned())));
    if roots.windows(2).any(|pair| pair[0].1 != pair[1].1) {
        let roots = roots.iter();
        let roots = roots.map(|(name, root)| format!("{name}: {}", root.display()));
        findings.list(code::TOOLKITS_DISAGREE, roots);
    }
    match nvcc {
        None => findings.add(code::NO_TOOLKIT, "no nvcc on PATH"),
        Some(nvcc) => {
            let version = Version::or_unknown(version);
            findings.add(code::TOOLKIT, format!("{}, CUDA {version}", nvcc.display()));
            let mut compilers = ["c++", "g++", "clang++", "cc", "gcc"].into_iter();
            if !compilers.any(|name| source.program(name).is_some()) {
                findings.add(code::NO_COMPILER, "no c++, g++, clang++ or cc on PATH");
            }
        }
    }
    (version, findings)
}

/// What follows from the driver and the GPUs.
pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    if let (Some(version), Some(supported)) = (facts.toolkit, facts.cuda_of_driver())
        && version > supported
    {
        let driver = facts::driver_of_cuda(version);
        let driver = around(", packaged with driver ", driver, "");
        let seen = format!("CUDA {version}{driver}; the driver supports {supported}");
        findings.add(code::TOOLKIT_TOO_NEW, seen);
    }
    let variable = facts.source.variable("CUDA_COMPUTE_CAP");
    let Some(value) = variable else { return };
    let Some(target) = Target::parse(value) else {
        let seen = format!("CUDA_COMPUTE_CAP={value} is not a number such as 90");
        return findings.add(code::COMPUTE_CAP, seen);
    };
    let gpus = facts.gpus().iter();
    let mut gpus = gpus.filter_map(|gpu| Some((gpu.index, facts.capability(gpu)?)));
    if let Some((index, (major, minor))) = gpus.find(|(_, gpu)| !target.runs_on(*gpu)) {
        let seen = format!("CUDA_COMPUTE_CAP={value}, GPU {index} is {major}.{minor}");
        findings.begin(code::COMPUTE_CAP, seen).set_gpu(index);
    }
}

/// From the toolkit's record, or from its headers, which every installation has. Nothing is run.
fn version(source: &Source, root: &Path) -> Option<Version> {
    let recorded = source.text(root.join("version.json")).and_then(|text| {
        let record: serde_json::Value = serde_json::from_str(&text).ok()?;
        Version::parse(record["cuda"]["version"].as_str()?)
    });
    let defined = |header: &str| {
        let text = source.text(root.join(header))?;
        let (_, rest) = text.split_once("#define CUDA_VERSION")?;
        Version::of_cuda(rest.split_whitespace().next()?.parse().ok()?)
    };
    recorded
        .or_else(|| defined("include/cuda.h"))
        .or_else(|| defined("targets/x86_64-linux/include/cuda.h"))
        .map(Version::release)
}
