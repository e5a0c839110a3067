mod engine;
mod frame;
mod gradient;
mod launch;
mod layout;
mod state;
mod tables;
mod tasks;

pub use engine::Engine;

pub const IS_BUILT: bool = true;
