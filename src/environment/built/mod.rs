//! What is in this build: kernels, and engines that connect ranks.

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;

#[cfg(not(feature = "cuda"))]
pub(super) use disabled::kernels;
#[cfg(feature = "cuda")]
pub(super) use enabled::kernels;

/// Whether ranks can exchange by MPI.
pub(super) const HAS_MPI: bool = cfg!(feature = "mpi");
