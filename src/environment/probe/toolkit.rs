use std::path::{Path, PathBuf};

use crate::environment::source::Source;
use crate::facts::Version;

/// The CUDA toolkit that a build would use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Toolkit {
    /// The first `nvcc` on PATH, with links followed.
    pub(crate) nvcc: Option<PathBuf>,
    pub(crate) version: Option<Version>,
    /// Variables that name a toolkit: the name, the value, and the folder with links followed, if it exists.
    pub(crate) variables: Vec<(&'static str, String, Option<PathBuf>)>,
    /// A C++ compiler, which nvcc needs.
    pub(crate) compiler: Option<String>,
}

const VARIABLES: [&str; 4] = [
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CUDA_TOOLKIT_ROOT_DIR",
];

impl Toolkit {
    pub(crate) fn look(source: &Source) -> Self {
        let nvcc = program(source, &["nvcc"]).map(|path| source.resolved(path));
        let variable = |name: &&'static str| {
            let value = source.variable(name).filter(|value| !value.is_empty())?;
            let folder = source.exists(value).then(|| source.resolved(value));
            Some((*name, value.to_owned(), folder))
        };
        let variables: Vec<_> = VARIABLES.iter().filter_map(variable).collect();
        let by_path = nvcc.as_deref().and_then(root_of);
        let by_variable = variables.iter().find_map(|(_, _, folder)| folder.clone());
        Self {
            version: by_path
                .or(by_variable)
                .and_then(|root| version(source, &root)),
            nvcc,
            variables,
            compiler: program(source, &["c++", "g++", "clang++", "cc", "gcc"])
                .map(|path| path.display().to_string()),
        }
    }

    /// The folder that holds `bin/nvcc`.
    pub(crate) fn root(&self) -> Option<PathBuf> {
        self.nvcc.as_deref().and_then(root_of)
    }
}

fn root_of(nvcc: &Path) -> Option<PathBuf> {
    Some(nvcc.parent()?.parent()?.to_owned())
}

fn program(source: &Source, names: &[&str]) -> Option<PathBuf> {
    let folders = source.variable("PATH").unwrap_or_default().split(':');
    let folders = folders.filter(|folder| folder.starts_with('/')).take(256);
    let in_folders = |name: &&str| {
        let mut paths = folders.clone().map(|folder| Path::new(folder).join(name));
        paths.find(|path| source.exists(path))
    };
    names.iter().find_map(in_folders)
}

/// From the toolkit's record, or from its headers, which every installation has. Nothing is run.
fn version(source: &Source, root: &Path) -> Option<Version> {
    let record = source.text(root.join("version.json")).ok();
    let recorded = record.as_deref().and_then(|text| {
        let (_, rest) = text.split_once("\"cuda\"")?;
        let (_, rest) = rest.split_once("\"version\"")?;
        rest.split('"').nth(1)?.parse::<Version>().ok()
    });
    let headers = ["include/cuda.h", "targets/x86_64-linux/include/cuda.h"];
    let defined = || {
        headers.iter().find_map(|header| {
            let text = source.text(root.join(header)).ok()?;
            let (_, rest) = text.split_once("#define CUDA_VERSION")?;
            Version::of_cuda(rest.split_whitespace().next()?.parse().ok()?)
        })
    };
    recorded.or_else(defined).map(Version::release)
}
