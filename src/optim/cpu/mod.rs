//! One pass over each parameter on the CPU, without a temporary or an allocation. candle's threads share each large parameter; this crate's
//! team shares the small ones.

mod engine;
mod gradient;
mod lanes;
mod moment;
mod real;
mod share;
mod state;
mod team;

pub use engine::Engine;
pub use gradient::Gradient;
pub use lanes::{Elementwise, Lanes, Target};
pub use moment::Moment;
pub use real::{Real, Stored, values_mut};
pub use share::{BLOCK, CHUNK, in_blocks, in_stretches, is_shared, sum, sum_of_squares, take};
