//! What several ranks need. Nothing is judged where no ranks are intended.

mod fabric;
mod launch;
mod mpi;
mod nccl;
mod peers;

use super::{Facts, Findings, Reply, answer, code, joined};

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    if !facts.has_ranks() {
        return;
    }
    launch::judge(facts, findings);
    mpi::judge(facts, findings);
    if let Some(fabric) = &facts.fabric {
        fabric::judge(facts, fabric, findings);
    }
    if facts.shows_gpu() {
        nccl::judge(facts, findings);
        peers::judge(facts, findings);
    }
}
