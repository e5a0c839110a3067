//! The passes on CUDA, by kernels of this crate.

mod engine;
mod frame;
mod launch;
mod layout;
mod tables;
mod tasks;

pub use engine::Engine;
