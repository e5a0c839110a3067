use std::fmt;
use std::path::{Path, PathBuf};

use super::libraries::Library;
use crate::Source;
use crate::facts::Version;

/// Implementations of MPI whose launchers do not start each other's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    OpenMpi,
    /// Also those with its binary interface, such as Intel's.
    Mpich,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH or compatible",
        })
    }
}

/// What this process needs to know of MPI besides its libraries.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mpi {
    pub(crate) launcher: Option<PathBuf>,
    /// The implementation that the launcher belongs to, if the file at the end of its links tells.
    pub(crate) kind: Option<Kind>,
    /// Its version, if the files for building are installed.
    pub(crate) version: Option<Version>,
    pub(crate) is_root: bool,
}

impl Mpi {
    pub(crate) fn look(source: &Source) -> Self {
        let launcher = source
            .program("mpirun")
            .or_else(|| source.program("mpiexec"));
        let resolved = launcher.as_deref().map(|path| source.resolved(path));
        let kind = resolved.as_deref().and_then(kind_of);
        let recorded = |path: &Path| recorded(source, path, kind?);
        let version = resolved.as_deref().and_then(recorded);
        let status = source.text("/proc/self/status").unwrap_or_default();
        // Real and effective user.
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let effective = users.and_then(|users| users.split_whitespace().nth(1));
        Self {
            launcher,
            kind,
            version,
            is_root: effective == Some("0"),
        }
    }
}

/// Open MPI's mpirun is a link to `orterun`, from version 5 on a program that starts `prterun`. MPICH's is a link to `mpiexec.hydra`.
fn kind_of(launcher: &Path) -> Option<Kind> {
    let name = launcher.file_name()?.to_str()?;
    let holds = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    match name {
        _ if holds(&["orterun", "prterun", "openmpi"]) => Some(Kind::OpenMpi),
        _ if holds(&["hydra", "mpich"]) => Some(Kind::Mpich),
        _ => None,
    }
}

/// The version in the description for pkg-config beside the launcher's libraries.
fn recorded(source: &Source, launcher: &Path, kind: Kind) -> Option<Version> {
    let prefix = launcher.parent()?.parent()?;
    let name = match kind {
        Kind::OpenMpi => "ompi.pc",
        Kind::Mpich => "mpich.pc",
    };
    let folders = [
        "lib",
        "lib64",
        "lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
    ]
    .into_iter();
    let mut files = folders.map(|folder| prefix.join(folder).join("pkgconfig").join(name));
    let text = files.find_map(|file| source.text(file))?;
    let mut lines = text.lines();
    Version::parse(lines.find_map(|line| line.strip_prefix("Version:"))?)
}

impl Kind {
    /// By the name of the library: Open MPI's is `libmpi.so.40` from 3.0 on, that of MPICH's interface `libmpi.so.12`, or `libmpich.so.12`.
    pub(crate) fn of(library: &Library) -> Option<Self> {
        match (library.name, library.major) {
            ("mpi", 20 | 40) => Some(Self::OpenMpi),
            ("mpi" | "mpich", 12) => Some(Self::Mpich),
            _ => None,
        }
    }
}
