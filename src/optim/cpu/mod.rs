//! One pass over each parameter on the CPU, without a temporary or an allocation. candle's threads share each large parameter; this crate's
//! team shares the small ones.

mod bytes;
mod column;
mod engine;
mod gradient;
mod lanes;
mod noise;
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "for parameters on CUDA")
)]
mod parted;
mod real;
mod share;
mod state;
mod team;
mod wide;

pub use column::Column;
pub use engine::Engine;
pub use gradient::Gradient;
pub use lanes::{Elementwise, Target};
#[cfg(feature = "cuda")]
pub use parted::{Memory, Part, update};
pub use real::{Real, reals};
pub use share::{BLOCK, CHUNK, in_blocks, in_stretches, is_shared, squares, squares_in, take};
