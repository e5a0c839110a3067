//! One pass over each parameter on the CPU, without a temporary or an allocation. candle's threads share each large parameter; this crate's
//! team shares the small ones.

mod column;
mod engine;
mod gradient;
mod lanes;
mod noise;
mod real;
mod share;
mod state;
mod team;
mod wide;

pub use column::Column;
pub use engine::Engine;
pub use gradient::Gradient;
pub use lanes::{Elementwise, Target};
pub use real::{Real, reals};
pub use share::{BLOCK, CHUNK, in_blocks, in_stretches, is_shared, squares, squares_in, take};
