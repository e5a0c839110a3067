//! The passes on CUDA, by kernels of this crate.

mod engine;
mod frame;
mod gradient;
mod launch;
mod layout;
mod state;
mod tables;
mod tasks;

pub use engine::Engine;
