//! Which samples come next?

mod dataset;
mod tensors;

pub use dataset::{Concat, Dataset};
pub use tensors::Tensors;
