//! What follows from what was seen. Each file judges one subject; a finding is made in one place.

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

use super::code::CUDA_FAILS;
use super::facts::Facts;
use super::finding::{Finding, told};
use super::probe::driver::Cuda;

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
    findings.extend(untold(facts, &findings));
    findings
}

/// A status of cuInit for which no judge found a reason, since what it usually comes from was not seen.
fn untold(facts: &Facts, findings: &[Finding]) -> Option<Finding> {
    let Some(Ok(Cuda {
        init: Err(code), ..
    })) = facts.cuda
    else {
        return None;
    };
    let status = crate::facts::cuda(code);
    let is_told = findings.iter().any(|finding| finding.code.prevents_cuda);
    (!is_told)
        .then(|| Finding::new(&CUDA_FAILS, told("cuInit answers", code, status)).advised(status))
}
