//! What follows from what was seen. Each file judges one subject, and each finding is made in one place.

mod driver;
mod gpus;
mod kernel;
mod libraries;
mod ranks;
mod variables;

use super::finding::{answer, around, joined};
use super::{Facts, Findings, Reply, code, host, toolkit};
use crate::facts::cuda;

/// Adds all findings, in no order.
pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    kernel::judge(facts, findings);
    driver::judge(facts, findings);
    gpus::judge(facts, findings);
    driver::kernels(facts, findings);
    libraries::judge(facts, findings);
    variables::judge(facts, findings);
    host::judge(facts, findings);
    toolkit::judge(facts, findings);
    ranks::judge(facts, findings);
    // No judge has found the reason for this status.
    if let Reply::Failed(call, number) = facts.cuda
        && !findings.0.iter().any(|finding| finding.code.prevents_cuda)
    {
        findings.answer(code::CUDA_FAILS, (call, number), cuda);
    }
}
