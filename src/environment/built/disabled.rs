use crate::environment::probe::ptx::Kernels;

/// A build without `cuda` holds none.
pub(in crate::environment) fn kernels() -> Vec<Kernels> {
    Vec::new()
}
