//! What several ranks need. Nothing is judged where no ranks are intended.

use std::collections::BTreeMap;

use bytesize::ByteSize;

use super::{Facts, Findings, Reply, answer, around, code, joined};
use crate::facts::{self, Version};
use crate::probe::libraries::{Library, MPI};
use crate::probe::ranks::{Fabric, Kind, LAUNCHERS, Mpi, Nccl, Port, place};

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    if !facts.has_ranks() {
        return;
    }
    launch(facts, findings);
    mpi(facts, findings);
    if let Some(fabric) = &facts.fabric {
        network(facts, fabric, findings);
    }
    if facts.shows_gpu() {
        nccl(facts, findings);
        peers(facts, findings);
    }
}

fn launch(facts: &Facts, findings: &mut Findings) {
    let source = &*facts.source;
    let mut wrong = Vec::new();
    let [torchrun, others @ ..] = LAUNCHERS.map(|launcher| {
        let place = place(launcher, source);
        place.map_err(|problem| wrong.push(problem)).ok().flatten()
    });
    // srun starts one torchrun for each node, so that its numbers are others.
    if let (Some((rank, size)), Some((other_rank, other_size))) = (torchrun, others[0])
        && (rank, size) != (other_rank, other_size)
    {
        let one = format!("RANK={rank} of WORLD_SIZE={size}");
        let other = format!("OMPI_COMM_WORLD_RANK={other_rank} of {other_size}");
        wrong.push(format!("{one}, but {other}"));
    }
    if torchrun.is_some_and(|(_, size)| size > 1) && others == [None; 3] {
        let missing = ["MASTER_ADDR", "MASTER_PORT"].into_iter();
        let missing = missing.filter(|name| source.variable(name).is_none_or(str::is_empty));
        wrong.extend(missing.map(|name| format!("RANK and WORLD_SIZE without {name}")));
    }
    if let (Some(port), Some(_)) = (source.variable("MASTER_PORT"), torchrun)
        && !port.trim().parse::<u16>().is_ok_and(|port| port > 0)
    {
        wrong.push(format!("MASTER_PORT=`{port}` is not a port"));
    }
    if !wrong.is_empty() {
        findings.add(code::LAUNCH, wrong.join("; "));
    }
    // The first launcher that tells the rank on this node is the one that counts.
    let mut locals = LAUNCHERS.iter().map(|[.., local]| local);
    let told = locals.find_map(|name| Some((name, source.variable(name)?)));
    let visible = facts.visible_gpus();
    if let Some((name, value)) = told
        && let Ok(rank) = value.trim().parse::<usize>()
        && (1..=rank).contains(&visible)
    {
        let seen = format!("{name}={value}, GPUs that are visible: {visible}");
        findings.add(code::LOCAL_RANK, seen);
    }
}

/// Buffers of NCCL and MPI take more; with Linux's default of 8 MiB registration fails (NVIDIA/nccl-tests, issue 206; NVIDIA's guide
/// recommends no limit).
const LITTLE_LOCKABLE: u64 = 1 << 30;

fn network(facts: &Facts, fabric: &Fabric, findings: &mut Findings) {
    if fabric.ports.is_empty() {
        return;
    }
    let (active, others): (Vec<_>, Vec<_>) = fabric.ports.iter().partition(|port| port.is_active());
    let down = others.iter();
    let down = down.map(|port| format!("{}: {}", port.name, port.state));
    if active.is_empty() {
        return findings.list(code::NO_PORT, down);
    }
    findings.list(code::PORTS_DOWN, down);
    let described = |port: &&Port| {
        let link = match port.is_infiniband {
            true => "InfiniBand",
            false => "Ethernet",
        };
        format!("{}: {}, {link}", port.name, port.rate)
    };
    let seen = joined(active.iter().map(described), "; ");
    if active.iter().any(|port| port.rate != active[0].rate) {
        findings.add(code::PORTS_UNEQUAL, seen.clone());
    }
    findings.add(code::INFINIBAND, seen);
    if facts.shows_gpu() && !fabric.reaches_gpus {
        findings.add(code::NO_GPUDIRECT, "no /sys/module/nvidia_peermem");
    }
    if let Some(limit) = fabric.lockable.filter(|limit| *limit < LITTLE_LOCKABLE) {
        findings.add(code::LOCK_LIMIT, ByteSize(limit).to_string());
    }
}

/// `nvmlGpuP2PStatus_t` in nvml.h.
fn meaning(status: u32) -> &'static str {
    match status {
        1 => "not supported by the chipset",
        2 => "not supported by a GPU",
        3 => "not supported across these hubs of the bus",
        4 => "disabled by a setting of the driver",
        5 => "not supported",
        _ => "unknown",
    }
}

/// Access between the GPUs that this process sees.
fn peers(facts: &Facts, findings: &mut Findings) {
    let gpus = facts.all_gpus();
    let is_visible = |index: &u32| gpus.iter().any(|gpu| gpu.visible && gpu.index == *index);
    let pairs = facts.nvml.works().into_iter();
    let pairs = pairs.flat_map(|readings| &readings.pairs);
    let pairs = pairs.filter(|pair| pair.gpus.iter().all(is_visible));
    let pairs: Vec<_> = pairs.collect();
    if pairs.is_empty() {
        return;
    }
    let mut refused = BTreeMap::<u32, Vec<String>>::new();
    for pair in pairs.iter().filter(|pair| pair.status != 0) {
        let [one, other] = pair.gpus;
        let pairs = refused.entry(pair.status).or_default();
        pairs.push(format!("{one} and {other}"));
    }
    if refused.is_empty() {
        let by_nvlink = pairs.iter().filter(|pair| pair.by_nvlink).count();
        let seen = format!("pairs: {}, by NVLink: {by_nvlink}", pairs.len());
        return findings.add(code::PEERS, seen);
    }
    for (status, refused) in refused {
        const SHOWN: usize = 6;
        let more = refused.len().checked_sub(SHOWN).filter(|more| *more > 0);
        let more = around(" and ", more, " more");
        let refused = joined(refused.iter().take(SHOWN).map(String::as_str), ", ");
        let reason = meaning(status);
        let seen = format!("GPUs {refused}{more}: {reason} ({status})");
        findings.add(code::NO_PEERS, seen);
    }
}

fn mpi(facts: &Facts, findings: &mut Findings) {
    let (Some(mpi), Some(libraries)) = (&facts.mpi, &facts.libraries) else {
        return;
    };
    let is_mpi = |library: &&Library| MPI.contains(&library.name);
    let found: Vec<_> = libraries.on_path.iter().filter(is_mpi).collect();
    let elsewhere = libraries.elsewhere.iter().find(is_mpi);
    // Ranks on GPUs can do without it.
    let is_wanted = facts.source.for_ranks || !facts.shows_gpu();
    let libraries = joined(found.iter().map(|library| described(library)), ", ");
    match &mpi.launcher {
        Some(launcher) if !found.is_empty() => {
            let launcher = launcher.display();
            let fits = |library: &&Library| [None, mpi.kind].contains(&Kind::of(library));
            if let Some(kind) = mpi.kind
                && !found.iter().any(fits)
            {
                let seen = format!("{launcher} is of {kind}, the libraries are {libraries}");
                findings.add(code::MPI_MIXED, seen);
            }
            let version = around(" ", mpi.version.map(Version::plain), "");
            let kind = around(" (", mpi.kind, &format!("{version})"));
            findings.add(code::MPI, format!("{launcher}{kind}, {libraries}"));
            if is_wanted && !cfg!(feature = "mpi") {
                findings.add(code::MPI_NOT_BUILT, "the feature `mpi` is off");
            }
        }
        None if found.is_empty() && !is_wanted => {}
        launcher => {
            let absent = "no mpirun and no mpiexec on PATH";
            let no_launcher = launcher.is_none().then(|| absent.to_owned());
            let no_library = found.is_empty().then(|| match elsewhere {
                Some(library) => format!("{} is not on the library path", library.path()),
                None => "no libmpi on the library path".to_owned(),
            });
            let seen = joined(no_launcher.into_iter().chain(no_library), ", ");
            let finding = findings.begin(code::MPI_INCOMPLETE, seen);
            if let Some(folder) = elsewhere.and_then(|library| library.folder.strip_suffix("/lib"))
            {
                finding.next_step = "add MPI's folders to both paths, or load its module".into();
                let libraries = format!("LD_LIBRARY_PATH={folder}/lib:$LD_LIBRARY_PATH");
                finding.command = format!("export PATH={folder}/bin:$PATH {libraries}").into();
            }
        }
    }
    mpi_as_root(facts, mpi, findings);
}

fn described(library: &Library) -> String {
    let kind = around(" (", Kind::of(library), ")");
    format!("{}{kind}", library.soname)
}

/// Open MPI asks for two variables (or an option), except of processes that it has started already.
fn mpi_as_root(facts: &Facts, mpi: &Mpi, findings: &mut Findings) {
    let is_set = |name: &str| facts.source.variable(name) == Some("1");
    let mut variables = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].into_iter();
    let is_started = facts.source.variable("OMPI_COMM_WORLD_SIZE").is_some();
    if mpi.is_root && mpi.kind == Some(Kind::OpenMpi) && !is_started && !variables.all(is_set) {
        let seen = "this process runs as root, and OMPI_ALLOW_RUN_AS_ROOT or its CONFIRM is not 1";
        findings.add(code::MPI_ROOT, seen);
    }
}

/// Variables that turn off a transport, with the values that do, and their effects.
/// NVIDIA, NCCL user guide, environment variables, docs.nvidia.com/deeplearning/nccl; 2026-11.
const RESTRICTING: [&str; 7] = [
    "NCCL_P2P_DISABLE=1: no direct access between GPUs",
    "NCCL_P2P_LEVEL=LOC: no direct access between GPUs",
    "NCCL_P2P_LEVEL=0: no direct access between GPUs",
    "NCCL_SHM_DISABLE=1: no shared memory between processes",
    "NCCL_IB_DISABLE=1: no InfiniBand and RoCE",
    "NCCL_NET_GDR_LEVEL=LOC: no GPUDirect RDMA",
    "NCCL_NET_GDR_LEVEL=0: no GPUDirect RDMA",
];

fn nccl(facts: &Facts, findings: &mut Findings) {
    match &facts.nccl {
        Reply::Works(nccl) => nccl_found(facts, nccl, findings),
        Reply::Failed(call, status) => findings.add(code::NCCL_BROKEN, answer(call, *status, None)),
        Reply::Missing(reason) => nccl_missing(facts, reason, findings),
        Reply::Unknown => {}
    }
    let fabric = facts.fabric.as_ref();
    let has_ports = fabric.is_none_or(|fabric| !fabric.ports.is_empty());
    for restriction in RESTRICTING {
        let setting = restriction.split(':').next().unwrap_or_default();
        let (name, value) = setting.split_once('=').unwrap_or_default();
        // Without such a card there is nothing to turn off.
        let concerns_cards = matches!(name, "NCCL_IB_DISABLE" | "NCCL_NET_GDR_LEVEL");
        let is_set = facts.source.variable(name).map(str::trim) == Some(value);
        if is_set && (has_ports || !concerns_cards) {
            let finding = findings.begin(code::NCCL_RESTRICTED, restriction);
            finding.command = format!("unset {name}").into();
        }
    }
    nccl_interface(facts, findings);
}

fn nccl_found(facts: &Facts, nccl: &Nccl, findings: &mut Findings) {
    let version = nccl.version.map(Version::plain);
    let version = version.unwrap_or("of an unknown version".to_owned());
    let built = around(", built with CUDA ", nccl.cuda, "");
    let seen = format!("NCCL {version}{built}");
    // Within a major version, libraries run on older drivers.
    if let (Some(cuda), Some(supported)) = (nccl.cuda, facts.cuda_of_driver())
        && cuda.major() > supported.major()
    {
        let floor = facts::floor_of_major(cuda.major());
        let floor = around(", which needs driver ", floor, " or later");
        let seen = format!("{seen}{floor}; the driver supports CUDA {supported}");
        findings.add(code::NCCL_TOO_NEW, seen);
    }
    findings.add(code::NCCL, seen);
}

fn nccl_missing(facts: &Facts, reason: &str, findings: &mut Findings) {
    let libraries = facts.libraries.as_ref();
    if libraries.is_some_and(|libraries| libraries.find("nccl").is_some()) {
        return findings.add(code::NCCL_BROKEN, reason);
    }
    let is_nccl = |library: &&Library| library.name == "nccl";
    let elsewhere = libraries.and_then(|libraries| libraries.elsewhere.iter().find(is_nccl));
    match elsewhere {
        Some(library) => {
            let finding =
                findings.begin(code::NCCL_MISSING, format!("it is at {}", library.path()));
            finding.next_step = "add its folder to the library path".into();
            let folder = &library.folder;
            finding.command = format!("export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH").into();
        }
        None => findings.add(code::NCCL_MISSING, "no libnccl.so.2"),
    }
}

/// The variable is a list of prefixes of names; `=` in front of it demands whole names, and `^` excludes them.
fn nccl_interface(facts: &Facts, findings: &mut Findings) {
    let interfaces = facts.fabric.iter().flat_map(|fabric| &fabric.interfaces);
    let interfaces: Vec<_> = interfaces.map(String::as_str).collect();
    let variable = facts.source.variable("NCCL_SOCKET_IFNAME").map(str::trim);
    let Some(value) = variable.filter(|value| !value.is_empty()) else {
        return;
    };
    let list = value.strip_prefix('^');
    let (excludes, list) = (list.is_some(), list.unwrap_or(value));
    let whole = list.strip_prefix('=');
    let parts = whole.unwrap_or(list).split(',');
    let is_left = |interface: &&str| {
        let is_named = parts.clone().any(|part| match whole {
            Some(_) => *interface == part,
            None => interface.starts_with(part),
        });
        is_named != excludes
    };
    if !interfaces.is_empty() && !interfaces.iter().any(is_left) {
        let interfaces = joined(interfaces, ", ");
        let seen = format!("NCCL_SOCKET_IFNAME={value}, interfaces: {interfaces}");
        findings.add(code::NCCL_INTERFACE, seen);
    }
}
