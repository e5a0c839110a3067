//! What several ranks need: their launcher, MPI, NCCL, and the network between nodes.

use std::ffi::c_int;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memchr::memmem;
use regex_lite::Regex;

use super::cuda::Functions;
use super::libraries::{Libraries, Library};
use crate::facts::Version;
use crate::{Answer, Reply, Source, system};

/// Launchers: their names and their variables for this process's rank, the number of ranks, and the rank on this node.
/// torchrun: docs.pytorch.org/docs/stable/elastic/run.html. Open MPI: docs.open-mpi.org, environment variables. PMI: MPICH's hydra and
/// Slurm. srun's manual has Slurm's. 2026-11.
pub(crate) const LAUNCHERS: [[&str; 4]; 4] = [
    ["torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"],
    [
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ],
    ["PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    ["Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
];

/// The rank and the number of ranks by a launcher's variables, or what is wrong with them; `None` if neither is set. In a job of Slurm,
/// and not only in its steps, `SLURM_NTASKS` is set, which is nothing wrong.
pub(crate) fn place(
    [name, rank, size, _]: [&str; 4],
    source: &Source,
) -> Result<Option<(u64, u64)>, String> {
    let number = |name: &str, value: &str| {
        let number = value.trim().parse::<u64>();
        number.map_err(|_| format!("{name}=`{value}` is not a number"))
    };
    match (source.variable(rank), source.variable(size)) {
        (None, None) => Ok(None),
        (None, _) | (_, None) if name == "Slurm" => Ok(None),
        (Some(value), None) => Err(format!("{rank}={value} without {size}")),
        (None, Some(value)) => Err(format!("{size}={value} without {rank}")),
        (Some(of), Some(all)) => match (number(rank, of)?, number(size, all)?) {
            (of, all) if of < all => Ok(Some((of, all))),
            (of, all) => Err(format!("{rank}={of} with {size}={all}: ranks count from 0")),
        },
    }
}

/// Whether variables say, or try to say, that this process is one of several ranks.
pub(crate) fn is_launched(source: &Source) -> bool {
    let mut places = LAUNCHERS.iter().map(|launcher| place(*launcher, source));
    places.any(|place| place.map_or(true, |place| place.is_some_and(|(_, size)| size > 1)))
}

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
        let mut names = ["mpirun", "mpiexec"].into_iter();
        let launcher = names.find_map(|name| source.program(name));
        let resolved = launcher
            .as_deref()
            .map(|path| source.resolved(path.as_ref()));
        let kind = resolved.as_deref().and_then(kind_of);
        let recorded = |path: &Path| recorded(source, path, kind?);
        let version = resolved.as_deref().and_then(recorded);
        // Real and effective user.
        let users = source.after("Uid:", "/proc/self/status");
        Self {
            launcher,
            kind,
            version,
            is_root: users.is_some_and(|users| users.split_whitespace().nth(1) == Some("0")),
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
    Version::parse(&files.find_map(|file| source.after("Version:", file))?)
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

/// The ways between nodes, as the operating system shows them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fabric {
    /// Ports of RDMA devices: InfiniBand, and Ethernet with RoCE.
    pub(crate) ports: Vec<Port>,
    /// Whether the network card may read a GPU's memory by a module of the kernel, or by DMA-BUF.
    pub(crate) reaches_gpus: bool,
    /// The bytes that this process may lock in memory; `None` if there is no limit, or it is unknown.
    pub(crate) lockable: Option<u64>,
    /// The names of network interfaces.
    pub(crate) interfaces: Vec<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// Such as `mlx5_0 port 1`.
    pub(crate) name: String,
    /// Such as `ACTIVE`.
    pub(crate) state: String,
    /// Such as `400 Gb/sec (4X NDR)`.
    pub(crate) rate: String,
    pub(crate) is_infiniband: bool,
}

impl Port {
    pub(crate) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

const DEVICES: &str = "/sys/class/infiniband";
/// The bit of the capability to lock memory beyond the limit, CAP_IPC_LOCK.
const MAY_LOCK: u64 = 1 << 14;
/// The first Linux that exports a GPU's memory by DMA-BUF to network cards, with NVIDIA's open kernel modules.
/// NVIDIA, GPU Operator, "GPUDirect RDMA and GPUDirect Storage", prerequisites; 2026-11.
const WITH_DMA_BUF: Version = Version([5, 12, 0]);

impl Fabric {
    pub(crate) fn look(source: &Source) -> Self {
        Self {
            ports: ports(source),
            reaches_gpus: reaches_gpus(source),
            lockable: lockable(source),
            interfaces: source.names("/sys/class/net"),
        }
    }

    pub(crate) fn has_infiniband(&self) -> bool {
        self.ports.iter().any(|port| port.is_infiniband)
    }
}

fn ports(source: &Source) -> Vec<Port> {
    let mut ports = Vec::new();
    for device in source.names(DEVICES).into_iter().take(64) {
        let folder = format!("{DEVICES}/{device}/ports");
        for number in source.names(&folder).into_iter().take(64) {
            let read = |file: &str| source.line(format!("{folder}/{number}/{file}"));
            let state = read("state").unwrap_or_default();
            // `4: ACTIVE`.
            let state = state.rsplit(':').next().unwrap_or_default().trim();
            ports.push(Port {
                name: format!("{device} port {number}"),
                state: state.to_owned(),
                rate: read("rate").unwrap_or("unknown rate".to_owned()),
                is_infiniband: read("link_layer").is_some_and(|layer| layer == "InfiniBand"),
            });
        }
    }
    ports
}

fn reaches_gpus(source: &Source) -> bool {
    // The older module of Mellanox does the same.
    let mut modules = ["nvidia_peermem", "nv_peer_mem"].into_iter();
    let has_module = modules.any(|name| source.exists(format!("/sys/module/{name}")));
    let driver = source.line("/proc/driver/nvidia/version");
    let is_open = driver.is_some_and(|driver| driver.contains("Open Kernel Module"));
    let release = source.line("/proc/sys/kernel/osrelease");
    let release = release.and_then(|release| Version::parse(release.split('-').next()?));
    has_module || is_open && release.is_some_and(|release| release >= WITH_DMA_BUF)
}

/// The soft limit in `Max locked memory  8388608  8388608  bytes`, unless the process may exceed it.
fn lockable(source: &Source) -> Option<u64> {
    let capabilities = source.after("CapEff:", "/proc/self/status");
    let capabilities = capabilities.and_then(|text| u64::from_str_radix(&text, 16).ok());
    if capabilities.is_some_and(|bits| bits & MAY_LOCK != 0) {
        return None;
    }
    let limits = source.after("Max locked memory", "/proc/self/limits")?;
    limits.split_whitespace().next()?.parse().ok()
}

/// NCCL as it is loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nccl {
    pub(crate) version: Option<Version>,
    /// The CUDA that it was built with.
    pub(crate) cuda: Option<Version>,
}

/// Loads NCCL and asks for its version. Nothing is done on a GPU.
pub(crate) fn nccl(source: &Source, limit: Duration) -> Answer<Nccl> {
    let library = Functions::load(source, "libnccl.so.2", limit)?;
    let mut number = 0;
    // SAFETY: the signature of nccl.h; it may be called at any time.
    let asked = unsafe { library.ncclGetVersion(&mut number) };
    let reply = asked.map(|()| {
        let libraries = Libraries::look(source);
        let file = libraries.find("nccl").map(|library| library.path());
        Nccl {
            version: version_of(number),
            cuda: file.and_then(|file| cuda_in(&source.below(file.as_ref()))),
        }
    });
    Ok((version_of(number), Reply::of(reply)))
}

/// From NCCL's number: 2708 for 2.7.8, and 22803 for 2.28.3; it has five digits from 2.9 on.
fn version_of(number: c_int) -> Option<Version> {
    let number = u32::try_from(number).ok().filter(|number| *number > 0)?;
    let unit = if number < 10_000 { 1000 } else { 10_000 };
    Some(Version([number / unit, number % unit / 100, number % 100]))
}

/// From the text that NCCL logs at its start, such as `NCCL version 2.28.3+cuda13.0`, which lies among the file's first constants, before
/// the kernels: at 3.5 MB in 2.32.3 from PyPI.
fn cuda_in(file: &Path) -> Option<Version> {
    const FIRST: u64 = 64 << 20;
    let (file, mut bytes) = (system::open(file).ok()?, Vec::new());
    file.take(FIRST).read_to_end(&mut bytes).ok()?;
    let text = Regex::new(r"^NCCL version [0-9.]+\+cuda([0-9]+\.[0-9]+)").ok()?;
    memmem::find_iter(&bytes, "NCCL version ").find_map(|start| {
        let end = bytes.len().min(start + 64);
        let beginning = String::from_utf8_lossy(&bytes[start..end]);
        Version::parse(text.captures(&beginning)?.get(1)?.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_both_kinds_of_numbers() {
        assert_eq!(version_of(2708), Some(Version([2, 7, 8])));
        assert_eq!(version_of(22_803), Some(Version([2, 28, 3])));
        assert_eq!(version_of(23_203).unwrap().release().to_string(), "2.32");
        assert_eq!(version_of(0).or(version_of(-5)), None);
    }
}
