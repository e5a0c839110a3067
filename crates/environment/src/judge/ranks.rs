//! What several ranks need. Nothing is judged where no ranks are intended.

use std::collections::BTreeMap;

use bytesize::ByteSize;

use super::{Facts, Findings, code, joined, mpi, nccl};
use crate::probe::fabric::{Fabric, Port};
use crate::probe::launch::{LAUNCHERS, place};

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    if !facts.has_ranks() {
        return;
    }
    launch(facts, findings);
    mpi::judge(facts, findings);
    if let Some(fabric) = &facts.fabric {
        network(facts, fabric, findings);
    }
    if facts.shows_gpu() {
        nccl::judge(facts, findings);
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
    let down = others
        .iter()
        .map(|port| format!("{}: {}", port.name, port.state));
    if active.is_empty() {
        return findings.list(code::NO_PORT, down);
    }
    findings.list(code::PORTS_DOWN, down);
    let described = |port: &&Port| {
        let link = if port.is_infiniband {
            "InfiniBand"
        } else {
            "Ethernet"
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
    let pairs = facts
        .nvml
        .works()
        .map_or(&[][..], |readings| &readings.pairs);
    let pairs = pairs.iter().filter(|pair| pair.gpus.iter().all(is_visible));
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
        let more = refused.len().saturating_sub(SHOWN);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let refused = joined(refused.iter().take(SHOWN).map(String::as_str), ", ");
        let reason = meaning(status);
        findings.add(
            code::NO_PEERS,
            format!("GPUs {refused}{more}: {reason} ({status})"),
        );
    }
}
