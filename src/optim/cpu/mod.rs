//! One pass over each parameter on the CPU, without a temporary or an allocation. candle's threads share each large parameter; this crate's
//! team shares the small ones.

mod engine;
mod lanes;
mod memory;
mod real;
mod share;
mod state;
mod team;

pub use engine::Engine;
pub use lanes::{Elementwise, Target};
pub use memory::{Column, Gradient};
pub use real::{Real, reals};
pub use share::{BLOCK, CHUNK, in_blocks, in_stretches, is_shared, squares, squares_in, take};
