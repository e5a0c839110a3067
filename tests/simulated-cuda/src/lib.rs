//! A simulated CUDA driver: stand-ins for libcuda, cuBLAS, cuRAND, the CUDA runtime, nvrtc and NVML, so that programs
//! with CUDA code run on a machine without a GPU. The README says what is modelled.
//!
//! What a program links against but is not modelled ends it with a message: never a made-up answer.

// The entry points have the names, the many parameters and the safety contracts of CUDA, which documents them.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
#![deny(clippy::undocumented_unsafe_blocks)]

pub mod control;
pub mod cublas;
mod cudart;
pub mod curand;
pub mod device;
pub mod driver;
mod handle;
pub mod nvml;
mod nvrtc;
pub mod ptx;
mod simulator;
pub mod status;

/// Entry points that only say that they are not modelled; the build script writes them.
mod not_modelled {
    include!(concat!(env!("OUT_DIR"), "/not_modelled.rs"));
}
