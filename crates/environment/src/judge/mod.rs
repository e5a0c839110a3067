//! What follows from what was seen. Each file judges one subject, and each finding is made in one place.

mod driver;
mod gpus;
mod ranks;
mod surroundings;

use super::code::{answer, around, joined};
use super::{Facts, Findings, Reply, code, host, toolkit};
use crate::facts::cuda;

/// Adds all findings, in no order.
pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    driver::judge(facts, findings);
    gpus::judge(facts, findings);
    driver::kernels(facts, findings);
    surroundings::libraries(facts, findings);
    surroundings::variables(facts, findings);
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
