//! What follows from what was seen. Each file judges one subject, and each finding is made in one place.

mod driver;
mod gpu;
mod kernel;
mod kernels;
mod libraries;
mod variables;

use super::code;
use super::facts::Facts;
use super::finding::{Findings, answer};
use super::reply::Reply;

/// Adds all findings, in no order.
pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    kernel::judge(facts, findings);
    driver::judge(facts, findings);
    gpu::judge(facts, findings);
    kernels::judge(facts, findings);
    libraries::judge(facts, findings);
    variables::judge(facts, findings);
    // No judge has found the reason for this status.
    if let Reply::Failed(call, number) = facts.cuda
        && !findings.0.iter().any(|finding| finding.code.prevents_cuda)
    {
        let status = crate::facts::cuda(number);
        let seen = answer(call, number, status);
        findings.begin(code::CUDA_FAILS, seen).advise(status);
    }
}
