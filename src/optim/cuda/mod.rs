//! The passes on CUDA, by kernels of this crate.

mod address;
mod engine;
mod host;
mod launch;
mod layout;
mod state;
mod surveyor;
mod tables;

pub use engine::Engine;
