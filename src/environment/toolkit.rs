use std::path::{Path, PathBuf};

use super::code;
use super::facts::Facts;
use super::finding::{Finding, Findings};
use super::probe::ptx::Target;
use super::source::Source;
use crate::facts::{self, Version};

const VARIABLES: [&str; 4] = [
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CUDA_TOOLKIT_ROOT_DIR",
];

/// The CUDA toolkit that a build would use.
#[derive(Debug)]
pub(super) struct Toolkit {
    version: Option<Version>,
    findings: Findings,
}

impl Toolkit {
    pub(super) fn look(source: &Source) -> Self {
        let mut findings = Findings::default();
        let mut roots = Vec::new();
        for name in VARIABLES {
            match source.variable(name).unwrap_or_default() {
                "" => {}
                value if source.exists(value) => roots.push((name, source.resolved(value))),
                value => findings.add(code::TOOLKIT_NOWHERE, format!("{name}={value}")),
            }
        }
        let nvcc = program(source, "nvcc").map(|path| source.resolved(path));
        let by_path = nvcc.as_deref().and_then(|nvcc| nvcc.parent()?.parent());
        let used = by_path.or(roots.first().map(|(_, root)| root.as_path()));
        let version = used.and_then(|root| version(source, root));
        roots.extend(by_path.map(|root| ("PATH", root.to_owned())));
        if roots.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            let roots = roots.iter();
            let roots = roots.map(|(name, root)| format!("{name}: {}", root.display()));
            let seen = roots.collect::<Vec<_>>().join(", ");
            findings.add(code::TOOLKITS_DISAGREE, seen);
        }
        match nvcc {
            None => findings.add(code::NO_TOOLKIT, "no nvcc on PATH"),
            Some(nvcc) => {
                let version = version.map(|version| version.to_string());
                let version = version.unwrap_or("of an unknown version".to_owned());
                let seen = format!("{}, CUDA {version}", nvcc.display());
                findings.add(code::TOOLKIT, seen);
                let mut compilers = ["c++", "g++", "clang++", "cc", "gcc"].into_iter();
                if !compilers.any(|name| program(source, name).is_some()) {
                    let seen = "no c++, g++, clang++ or cc on PATH";
                    findings.add(code::NO_COMPILER, seen);
                }
            }
        }
        Self { version, findings }
    }

    /// The findings, with what follows from the driver and the GPUs.
    pub(super) fn findings(self, facts: &Facts) -> Vec<Finding> {
        let mut findings = self.findings;
        if let (Some(version), Some(supported)) = (self.version, facts.cuda_of_driver())
            && version > supported
        {
            let driver = facts::driver_of_cuda(version);
            let driver = driver.map(|driver| format!(", packaged with driver {driver}"));
            let driver = driver.unwrap_or_default();
            let seen = format!("CUDA {version}{driver}; the driver supports {supported}");
            findings.add(code::TOOLKIT_TOO_NEW, seen);
        }
        compute_cap(facts, &mut findings);
        findings.0
    }
}

fn compute_cap(facts: &Facts, findings: &mut Findings) {
    let Some(value) = facts.source.variable("CUDA_COMPUTE_CAP") else {
        return;
    };
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

fn program(source: &Source, name: &str) -> Option<PathBuf> {
    let folders = source.variable("PATH")?.split(':');
    let folders = folders.filter(|folder| folder.starts_with('/')).take(256);
    let mut paths = folders.map(|folder| Path::new(folder).join(name));
    paths.find(|path| source.exists(path))
}

/// From the toolkit's record, or from its headers, which every installation has. Nothing is run.
fn version(source: &Source, root: &Path) -> Option<Version> {
    let recorded = source.text(root.join("version.json")).and_then(|text| {
        let (_, rest) = text.split_once("\"cuda\"")?;
        let (_, rest) = rest.split_once("\"version\"")?;
        Version::parse(rest.split('"').nth(1)?)
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
