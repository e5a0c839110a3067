//! What follows from what was seen. Each file judges one subject, and each finding is made in one place.

mod container;
mod cuda;
mod gpu;
mod host;
mod kernel;
mod kernels;
mod libraries;
mod log;
mod nvml;
mod toolkit;
mod variables;
mod versions;

use super::code;
use super::facts::Facts;
use super::finding::{Finding, answer};

/// All findings, in no order.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let judges = [
        kernel::judge,
        container::judge,
        log::judge,
        nvml::judge,
        gpu::judge,
        cuda::judge,
        kernels::judge,
        libraries::judge,
        toolkit::judge,
        variables::judge,
        host::judge,
    ];
    let mut findings: Vec<_> = judges.into_iter().flat_map(|judge| judge(facts)).collect();
    // No judge has found the reason for this status.
    if let Some(Err(number)) = facts.cuda_init()
        && !findings.iter().any(|finding| finding.code.prevents_cuda)
    {
        let status = crate::facts::cuda(number);
        let seen = answer("cuInit", number, status);
        findings.push(Finding::new(code::CUDA_FAILS, seen).advised(status));
    }
    findings
}
