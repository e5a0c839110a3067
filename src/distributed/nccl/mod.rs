//! NCCL: the engine between GPUs. It is loaded at run time, so that one program runs with and without it.

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;

#[cfg(not(feature = "cuda"))]
pub(super) use disabled::open;
#[cfg(feature = "cuda")]
pub(super) use enabled::open;
