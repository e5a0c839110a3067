//! The policy that predicts what fits. `size` chooses the size from what `shape` knows about samples of one shape: the largest
//! cost that fits and what failed (`ceiling`); `policy` is the interface.

mod builder;
mod ceiling;
mod choice;
mod policy;
mod room;
mod shape;
mod shapes;
mod size;

pub use builder::PredictiveBuilder;
pub use policy::Predictive;
