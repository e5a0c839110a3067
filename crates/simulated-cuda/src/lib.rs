//! A simulated CUDA driver: stand-ins for libcuda, cuBLAS, cuDNN, cuRAND, the CUDA runtime, nvrtc, NVML and NCCL, so that programs
//! with CUDA code run on a machine without a GPU. The README lists what is modelled.
//!
//! A call to a function that is not modelled prints a message and ends the program, instead of returning a made-up answer.

// The entry points have the names, the many parameters and the safety contracts of CUDA, which documents them.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
#![deny(clippy::undocumented_unsafe_blocks)]

pub mod card;
pub mod control;
pub mod counts;
pub mod cublas;
pub mod cudart;
pub mod cudnn;
pub mod curand;
pub mod device;
pub mod driver;
mod handle;
pub mod marks;
pub mod nccl;
pub mod nvml;
mod nvrtc;
pub mod ptx;
mod report;
mod simulator;
pub mod status;

/// Entry points that report that they are not modelled. The build script writes them.
mod not_modelled {
    include!(concat!(env!("OUT_DIR"), "/not_modelled.rs"));
}
