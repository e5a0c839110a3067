//! Which samples come next?

mod batching;
mod caught;
mod check;
mod collate;
mod dataset;
mod loaded;
mod loader;
mod order;
mod sources;
mod stage;
mod tensors;
mod waits;

pub use crate::batch::Position;
pub use check::{Check, check};
pub use collate::{Pack, Packed, Pad, Padded, Piece, stack};
pub use dataset::{Concat, Dataset, Items};
pub use loaded::Loaded;
pub use loader::{Continued, Epoch, Loader, LoaderBuilder, LoaderStats, Source, Stream};
pub use sources::*;
pub use tensors::Tensors;
pub(crate) use waits::waited;
