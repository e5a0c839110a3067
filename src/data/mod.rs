//! Which samples come next?

mod batching;
mod caught;
mod check;
mod dataset;
mod loaded;
mod loader;
mod order;
mod position;
mod stage;
mod tensors;
mod waits;

pub use dataset::{Concat, Dataset};
pub use loaded::Loaded;
pub use loader::{Epoch, Loader, LoaderBuilder, LoaderStats, Source, Stream};
pub use position::Position;
pub use tensors::Tensors;
pub(crate) use waits::waited;
