//! A GPU's memory: candle on a stream-ordered pool of this crate.

#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
use enabled as implementation;

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(not(feature = "cuda"))]
use disabled as implementation;

mod builder;
mod recover;

pub use builder::CudaMemoryBuilder;
#[cfg(feature = "cuda")]
pub(super) use enabled::Event;
pub use recover::recover;
pub(crate) use recover::unmask;
