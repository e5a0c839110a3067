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
mod growth;
mod recover;

pub use builder::CudaMemoryBuilder;
pub use growth::Growth;
pub(super) use implementation::Events;
pub use recover::recover;
pub(crate) use recover::unmask;
