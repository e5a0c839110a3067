//! The policy that predicts what fits. `size` chooses the size from what `shape` knows about samples of one shape: the largest
//! cost that fits and what failed; `policy` is the interface.

mod policy;
mod shape;
mod shapes;
mod size;

pub use policy::{Predictive, PredictiveBuilder};
