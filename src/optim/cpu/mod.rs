//! One pass over each parameter on the CPU, without a temporary or an allocation. candle's threads share each large parameter; this crate's
//! team shares the small ones.

mod column;
mod engine;
mod gradient;
#[allow(unsafe_code, reason = "AVX2")]
mod lanes;
#[allow(unsafe_code, reason = "lends a closure to threads that outlive it")]
mod share;

pub use column::Column;
pub use engine::Engine;
pub use gradient::{Gradient, Real, reals};
pub use lanes::Elementwise;
pub use share::{CHUNK, in_blocks, in_stretches, is_shared};
