use bytesize::ByteSize;

use super::{Facts, Findings, code, joined};
use crate::environment::probe::fabric::{Fabric, Port};

/// Buffers of NCCL and MPI take more; with Linux's default of 8 MiB registration fails (NVIDIA/nccl-tests, issue 206; NVIDIA's guide
/// recommends no limit).
const LITTLE_LOCKABLE: u64 = 1 << 30;

pub(super) fn judge(facts: &Facts, fabric: &Fabric, findings: &mut Findings) {
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
