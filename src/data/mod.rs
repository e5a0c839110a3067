//! Which samples come next?

mod dataset;
mod sources;
mod tensors;

pub use dataset::{Concat, Dataset};
pub use sources::*;
pub use tensors::Tensors;
