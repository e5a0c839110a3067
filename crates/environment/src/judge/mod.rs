//! What follows from what was seen. Each file judges one subject, and each finding is made in one place.
//!
//! Judges read [`Facts`] and the process's variables, and neither files nor libraries, so that equal facts give equal findings. What is
//! unknown, because a probe did not finish or the machine does not tell, leads to no conclusion. Where one condition explains another, such as
//! a missing container runtime for a missing libcuda, only the cause is a finding.

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
