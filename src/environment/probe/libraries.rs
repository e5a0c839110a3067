use std::path::{Path, PathBuf};

use crate::environment::source::Source;
use crate::facts::Version;

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
    pub(crate) folder: String,
    /// The version of the file at the end of the links.
    pub(crate) version: Option<Version>,
}

impl Library {
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.folder, self.soname)
    }
}

/// What candle's feature `cuda` links against.
pub(crate) const NEEDED: [&str; 5] = ["cudart", "cublas", "cublasLt", "curand", "nvrtc"];
/// What candle's features `cudnn` and `nccl` link against.
pub(crate) const OPTIONAL: [&str; 2] = ["cudnn", "nccl"];
const DRIVER: [&str; 3] = ["cuda", "nvidia-ml", "nvidia-ptxjitcompiler"];

impl Libraries {
    pub(crate) fn look(source: &Source) -> Self {
        let variable = folders_of(source.variable("LD_LIBRARY_PATH"));
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
}

/// The file that a program would load by this name.
pub(crate) fn locate(source: &Source, soname: &str) -> Option<PathBuf> {
    let libraries = Libraries::look(source);
    let library = libraries
        .on_path
        .iter()
        .find(|library| library.soname == soname)?;
    source.below(Path::new(&library.folder).join(soname)).ok()
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

fn folders_of(variable: Option<&str>) -> Vec<String> {
    let folders = variable.unwrap_or_default().split([':', ';']);
    let absolute = folders.filter(|folder| folder.starts_with('/'));
    absolute.map(str::to_owned).take(256).collect()
}

/// The folders of `/etc/ld.so.conf` and of the files that it includes.
fn configured(source: &Source) -> Vec<String> {
    let mut text = source.text("/etc/ld.so.conf").unwrap_or_default();
    let folder = "/etc/ld.so.conf.d";
    let mut names = source.names(folder);
    names.retain(|name| name.ends_with(".conf"));
    for name in names {
        text.push('\n');
        text.push_str(&source.text(format!("{folder}/{name}")).unwrap_or_default());
    }
    let lines = text.lines().map(str::trim);
    let folders = lines.filter(|line| line.starts_with('/'));
    folders.map(str::to_owned).take(1024).collect()
}

/// The folders in which toolkits install libraries.
fn toolkits(source: &Source) -> Vec<String> {
    let named = ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"];
    let mut roots: Vec<_> = named
        .iter()
        .filter_map(|name| source.variable(name).map(str::to_owned))
        .collect();
    let mut local = source.names("/usr/local");
    local.retain(|name| name.starts_with("cuda"));
    roots.extend(local.iter().map(|name| format!("/usr/local/{name}")));
    roots.push("/opt/cuda".to_owned());
    let mut folders: Vec<_> = roots.iter().map(|root| format!("{root}/lib64")).collect();
    let conda = source.variable("CONDA_PREFIX");
    folders.extend(conda.map(|root| format!("{root}/lib")));
    folders.extend(of_pip(source));
    folders
}

/// The folders in which pip installs libraries, one for each, such as `site-packages/nvidia/cublas/lib`.
fn of_pip(source: &Source) -> Vec<String> {
    let user = source.variable("HOME").map(|home| format!("{home}/.local"));
    let named =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].map(|name| source.variable(name).map(str::to_owned));
    let system = ["/usr/local", "/usr"].map(|root| Some(root.to_owned()));
    let roots = named.into_iter().chain([user]).chain(system).flatten();
    let mut folders = Vec::new();
    for root in roots {
        let pythons = source.names(format!("{root}/lib")).into_iter();
        for python in pythons.filter(|name| name.starts_with("python")) {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = format!("{root}/lib/{python}/{packages}/nvidia");
                let names = source.names(&nvidia).into_iter().take(64);
                folders.extend(names.map(|name| format!("{nvidia}/{name}/lib")));
            }
        }
    }
    folders
}

/// The libraries in folders, without folders that were `seen` already, perhaps by another name.
fn search(source: &Source, folders: &[String], seen: &mut Vec<PathBuf>) -> Vec<Library> {
    let mut found = Vec::new();
    for folder in folders {
        let resolved = source.resolved(folder);
        if seen.contains(&resolved) {
            continue;
        }
        seen.push(resolved);
        for soname in source.names(folder) {
            let Some(name) = name_of(&soname) else {
                continue;
            };
            let path = Path::new(folder).join(&soname);
            // Such as 32-bit libraries of an old driver.
            if source.is_of_other_class(&path) {
                continue;
            }
            found.push(Library {
                name,
                version: version_of(&source.resolved(&path)),
                folder: folder.clone(),
                soname,
            });
        }
    }
    found
}

/// `cublas` for `libcublas.so.12`. Names with full versions have more dots; programs do not ask for them.
fn name_of(soname: &str) -> Option<&'static str> {
    let (name, version) = soname.strip_prefix("lib")?.split_once(".so.")?;
    let is_short = version.split('.').count() <= 2;
    let is_number = version
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let names = NEEDED.iter().chain(&OPTIONAL).chain(&DRIVER);
    let mut names = names.filter(|known| is_short && is_number && **known == name);
    names.next().copied()
}

fn version_of(path: &Path) -> Option<Version> {
    let file = path.file_name()?.to_str()?;
    file.split_once(".so.")?.1.parse().ok()
}
