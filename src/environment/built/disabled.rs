use crate::environment::probe::ptx::Kernels;

/// None without `cuda`.
pub(crate) fn kernels() -> Vec<Kernels> {
    Vec::new()
}
