//! One pass over each parameter on the CPU, without a temporary or an allocation. candle's threads share each large parameter; this crate's
//! team shares the small ones.

mod engine;
mod gradient;
mod lanes;
mod real;
mod share;
mod target;
mod team;
mod values;
mod visit;

pub use engine::Engine;
pub use gradient::{Gradient, offsets};
pub use lanes::{BLOCK, Lanes, own};
pub use real::Real;
#[cfg(test)]
pub use share::SHARED;
pub use share::{By, CHUNK, in_blocks, in_stretches, share, sum, sum_of_squares};
pub use target::{Target, is_shared};
pub use values::take;
