use super::{Facts, Findings, Reply, answer, around, code, joined};
use crate::facts::{self, Version};
use crate::probe::libraries::Library;
use crate::probe::nccl::Nccl;

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

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    match &facts.nccl {
        Reply::Works(nccl) => found(facts, nccl, findings),
        Reply::Failed(call, status) => findings.add(code::NCCL_BROKEN, answer(call, *status, None)),
        Reply::Missing(reason) => missing(facts, reason, findings),
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
    interface(facts, findings);
}

fn found(facts: &Facts, nccl: &Nccl, findings: &mut Findings) {
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

fn missing(facts: &Facts, reason: &str, findings: &mut Findings) {
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
fn interface(facts: &Facts, findings: &mut Findings) {
    let interfaces = facts.fabric.iter().flat_map(|fabric| &fabric.interfaces);
    let interfaces: Vec<_> = interfaces.map(String::as_str).collect();
    let variable = facts.source.variable("NCCL_SOCKET_IFNAME").map(str::trim);
    let Some(value) = variable.filter(|value| !value.is_empty()) else {
        return;
    };
    let (excludes, rest) = match value.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let (is_whole, rest) = match rest.strip_prefix('=') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let names = |interface: &str, part: &str| match is_whole {
        true => interface == part,
        false => interface.starts_with(part),
    };
    let is_left = |interface: &&str| {
        let is_named = rest.split(',').any(|part| names(interface, part));
        is_named != excludes
    };
    if !interfaces.is_empty() && !interfaces.iter().any(is_left) {
        let interfaces = joined(interfaces, ", ");
        let seen = format!("NCCL_SOCKET_IFNAME={value}, interfaces: {interfaces}");
        findings.add(code::NCCL_INTERFACE, seen);
    }
}
