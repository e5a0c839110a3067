use std::path::{Path, PathBuf};

use crate::environment::source::Source;
use crate::facts::Version;

/// The CUDA toolkit that a build would take.
#[derive(Debug, Clone, Default)]
pub(in crate::environment) struct Toolkit {
    /// Where the first `nvcc` of PATH lies, links followed.
    pub(in crate::environment) nvcc: Option<PathBuf>,
    pub(in crate::environment) version: Option<Version>,
    /// Variables that name a toolkit: the name, the value, and where it leads; `None` where there is nothing.
    pub(in crate::environment) variables: Vec<(&'static str, String, Option<PathBuf>)>,
    /// A C++ compiler, which nvcc needs.
    pub(in crate::environment) compiler: Option<String>,
}

impl Toolkit {
    pub(in crate::environment) fn look(source: &Source) -> Self {
        let nvcc = program(source, &["nvcc"]).map(|path| source.resolved(path));
        let named = [
            "CUDA_HOME",
            "CUDA_PATH",
            "CUDA_ROOT",
            "CUDA_TOOLKIT_ROOT_DIR",
        ];
        let variables: Vec<_> = named
            .into_iter()
            .filter_map(|name| {
                let value = source.variable(name).filter(|value| !value.is_empty())?;
                let leads = source.exists(value).then(|| source.resolved(value));
                Some((name, value.to_owned(), leads))
            })
            .collect();
        let by_path = nvcc.as_deref().and_then(root_of);
        let by_variable = variables.iter().find_map(|(_, _, leads)| leads.clone());
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
    pub(in crate::environment) fn root(&self) -> Option<PathBuf> {
        self.nvcc.as_deref().and_then(root_of)
    }
}

fn root_of(nvcc: &Path) -> Option<PathBuf> {
    Some(nvcc.parent()?.parent()?.to_owned())
}

fn program(source: &Source, names: &[&str]) -> Option<PathBuf> {
    let folders = source.variable("PATH").unwrap_or_default().split(':');
    let folders: Vec<_> = folders
        .filter(|folder| folder.starts_with('/'))
        .take(256)
        .collect();
    let candidates = names.iter().flat_map(|name| {
        folders
            .iter()
            .map(move |folder| Path::new(folder).join(name))
    });
    candidates.into_iter().find(|path| source.exists(path))
}

/// By the toolkit's own record, or by its headers, which every installation has; nothing is run.
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
