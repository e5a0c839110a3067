//! Which of CUDA's, NCCL's and MPI's libraries the loader would find, and which lie elsewhere.
//!
//! Folders are searched in the loader's order: `LD_LIBRARY_PATH`, `/etc/ld.so.conf` with its folder, the defaults (ld.so(8)). A folder that was
//! seen by another name is left out. A library's version is that of the file at the end of its links, since programs ask for the short name.

use std::path::{Path, PathBuf};

use crate::Source;
use crate::facts::Version;
use crate::patience::Trusted;

/// NVIDIA's libraries where the loader would find them. Nothing is loaded: the versions come from names and links.
#[derive(Debug, Clone, Default)]
pub(crate) struct Libraries {
    /// The folders of LD_LIBRARY_PATH.
    pub(crate) variable: Vec<String>,
    /// The folders of LD_LIBRARY_PATH that do not exist.
    pub(crate) absent: Vec<String>,
    /// Libraries in the folders that the loader searches, in its order.
    pub(crate) on_path: Vec<Library>,
    /// Libraries in the folders of toolkits, outside the loader's path.
    pub(crate) elsewhere: Vec<Library>,
}

/// A library by the name that programs ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Library {
    /// Such as `cublas`.
    pub(crate) name: &'static str,
    /// Such as `libcublas.so.12`.
    pub(crate) soname: String,
    /// Of the interface, by the name.
    pub(crate) major: u32,
    pub(crate) folder: String,
    /// The version of the file at the end of the links, if its name has more of it than the major number.
    pub(crate) version: Option<Version>,
}

impl Library {
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.folder, self.soname)
    }

    /// Whether the file is named after a driver's version, and not after the interface's, 1.
    pub(crate) fn is_driver(&self) -> bool {
        self.version.is_some_and(|version| version.major() > 1)
    }

    /// Whether it belongs to cuda-compat, whose libraries precede the driver's on purpose.
    pub(crate) fn is_compat(&self) -> bool {
        Path::new(&self.folder).iter().any(|part| part == "compat")
    }
}

/// What candle's feature `cuda` links against.
pub(crate) const NEEDED: [&str; 5] = ["cudart", "cublas", "cublasLt", "curand", "nvrtc"];
/// What candle's features `cudnn` and `nccl` link against.
pub(crate) const OPTIONAL: [&str; 2] = ["cudnn", "nccl"];
/// What ranks may use besides NCCL.
pub(crate) const MPI: [&str; 2] = ["mpi", "mpich"];
pub(crate) const DRIVER: [&str; 3] = ["cuda", "nvidia-ml", "nvidia-ptxjitcompiler"];

impl Libraries {
    pub(crate) fn look(source: &Source) -> Self {
        let variable = source.variable("LD_LIBRARY_PATH").unwrap_or_default();
        let variable: Vec<_> = absolute(variable.split([':', ';'])).collect();
        let mut folders = variable.clone();
        folders.extend(configured(source));
        folders.extend(SYSTEM.map(str::to_owned));
        let mut seen = Vec::new();
        let on_path = search(source, &folders, &mut seen);
        let elsewhere = search(source, &toolkits(source), &mut seen);
        let absent = variable.iter().filter(|folder| !source.exists(folder));
        Self {
            absent: absent.cloned().collect(),
            variable,
            on_path,
            elsewhere,
        }
    }

    /// The first library of this name on the path.
    pub(crate) fn find(&self, name: &str) -> Option<&Library> {
        self.on_path.iter().find(|library| library.name == name)
    }

    /// The names that no library on the path has.
    pub(crate) fn missing(&self, names: &'static [&str]) -> impl Iterator<Item = &'static str> {
        let names = names.iter().copied();
        names.filter(|name| self.find(name).is_none())
    }
}

/// The files that a program would try to load by these names of NVIDIA's libraries. On this machine the loader finds them.
pub(crate) fn locate(source: &Source, names: &[&str]) -> Vec<Trusted> {
    let paths: Vec<PathBuf> = match source.is_this_machine() {
        true => names.iter().map(PathBuf::from).collect(),
        false => {
            let mut libraries = Libraries::look(source).on_path.into_iter();
            let library = libraries.find(|library| names.contains(&library.soname.as_str()));
            let file = library.map(|library| source.below(library.path().as_ref()));
            file.into_iter().collect()
        }
    };
    let trusted = |path: PathBuf| {
        // SAFETY: NVIDIA's libraries may be loaded at any time; the caller of `Environment::root` vouches for other files.
        unsafe { Trusted::new(path) }
    };
    paths.into_iter().map(trusted).collect()
}

/// The loader's default folders, and WSL's folder of the driver.
const SYSTEM: [&str; 9] = [
    "/usr/lib/wsl/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// The absolute folders among some texts.
fn absolute<'a>(folders: impl Iterator<Item = &'a str>) -> impl Iterator<Item = String> {
    let folders = folders.map(str::trim).filter(|path| path.starts_with('/'));
    folders.take(1024).map(str::to_owned)
}

/// The folders of `/etc/ld.so.conf` and of the files that it includes.
fn configured(source: &Source) -> Vec<String> {
    let folder = "/etc/ld.so.conf.d";
    let names = source.names(folder).into_iter();
    let included = names.filter(|name| name.ends_with(".conf"));
    let files = included.map(|name| format!("{folder}/{name}"));
    let files = std::iter::once("/etc/ld.so.conf".to_owned()).chain(files);
    let texts: Vec<_> = files.filter_map(|file| source.text(file)).collect();
    absolute(texts.iter().flat_map(|text| text.lines())).collect()
}

/// The folders in which toolkits, conda and pip install libraries.
fn toolkits(source: &Source) -> Vec<String> {
    // A folder may begin with a variable; one folder below may be any whose name has this beginning.
    let folders = [
        "$CUDA_HOME/lib64",
        "$CUDA_PATH/lib64",
        "$CUDA_ROOT/lib64",
        "/usr/local/cuda*/lib64",
        "/opt/cuda/lib64",
        // Fedora and its relatives, until a module is loaded.
        "/usr/lib64/openmpi/lib",
        "/usr/lib64/mpich/lib",
        "$CONDA_PREFIX/lib",
        // pip has one for each library, such as `site-packages/nvidia/cublas/lib`.
        "$VIRTUAL_ENV/lib/python*/site-packages/nvidia/*/lib",
        "$CONDA_PREFIX/lib/python*/site-packages/nvidia/*/lib",
        "$HOME/.local/lib/python*/site-packages/nvidia/*/lib",
        "/usr/local/lib/python*/site-packages/nvidia/*/lib",
        "/usr/local/lib/python*/dist-packages/nvidia/*/lib",
        "/usr/lib/python*/site-packages/nvidia/*/lib",
        "/usr/lib/python*/dist-packages/nvidia/*/lib",
    ];
    let folders = folders.map(|pattern| expanded(source, pattern));
    folders.concat()
}

/// The folders of a pattern, with `$VARIABLE` at its beginning, and `*` at the end of parts.
fn expanded(source: &Source, pattern: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for part in pattern.split('/') {
        if let Some(name) = part.strip_prefix('$') {
            found = Vec::from_iter(source.variable(name).map(str::to_owned));
        } else if let Some(start) = part.strip_suffix('*') {
            let mut below = Vec::new();
            for folder in found {
                let names = source.names(&folder).into_iter();
                let names = names.filter(|name| name.starts_with(start)).take(64);
                below.extend(names.map(|name| format!("{folder}/{name}")));
            }
            found = below;
        } else if !part.is_empty() {
            let longer = found.into_iter().map(|folder| format!("{folder}/{part}"));
            found = longer.collect();
        }
    }
    found
}

/// The libraries in folders, without folders that were `seen` already, perhaps by another name.
fn search(source: &Source, folders: &[String], seen: &mut Vec<PathBuf>) -> Vec<Library> {
    let mut found = Vec::new();
    for folder in folders {
        let resolved = source.resolved(folder.as_ref());
        if seen.contains(&resolved) {
            continue;
        }
        seen.push(resolved);
        for soname in source.names(folder) {
            let path = format!("{folder}/{soname}");
            // Others are such as 32-bit libraries of an old driver.
            if let Some((name, major)) = name_of(&soname)
                && !source.is_of_other_class(&path)
            {
                found.push(Library {
                    name,
                    major,
                    version: version_of(&source.resolved(path.as_ref())),
                    folder: folder.clone(),
                    soname,
                });
            }
        }
    }
    found
}

/// `cublas` and 12 for `libcublas.so.12`. Names with full versions have more dots; programs do not ask for them.
fn name_of(soname: &str) -> Option<(&'static str, u32)> {
    let (name, version) = soname.strip_prefix("lib")?.split_once(".so.")?;
    let is_short = version.split('.').count() <= 2;
    let mut names = NEEDED.iter().chain(&OPTIONAL).chain(&DRIVER).chain(&MPI);
    let name = names.find(|known| is_short && **known == name)?;
    Some((name, Version::parse(version)?.major()))
}

fn version_of(path: &Path) -> Option<Version> {
    let file = path.file_name()?.to_str()?;
    let (_, version) = file.split_once(".so.")?;
    Version::parse(version).filter(|_| version.contains('.'))
}
