//! What is there: each file looks at one subject and judges nothing.

pub(super) mod cuda;
pub(super) mod fabric;
pub(super) mod kernel;
pub(super) mod launch;
pub(super) mod libraries;
pub(super) mod mpi;
pub(super) mod nccl;
pub(super) mod nvml;
pub(super) mod ptx;
