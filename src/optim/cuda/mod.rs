//! The passes on CUDA, by kernels of this crate.

mod engine;
mod layout;
mod state;
mod tables;

pub use engine::Engine;
