//! MPI: the engine on CPUs, and by way of the host's memory also between GPUs where NCCL is missing.

#[cfg(not(feature = "mpi"))]
mod disabled;
#[cfg(feature = "mpi")]
mod enabled;

#[cfg(not(feature = "mpi"))]
pub(super) use disabled::Mpi;
#[cfg(feature = "mpi")]
pub(super) use enabled::Mpi;
