//! The policy that predicts what fits. `policy` picks a size from what `shape` knows about samples of one shape: the largest
//! cost that fits (`fits`), what failed (`ceiling`) and what is faster (`pace`). `probing` is for devices without measurements.

mod builder;
mod ceiling;
mod explained;
mod fits;
mod pace;
mod policy;
mod probing;
mod saved;
mod shape;
mod shapes;

pub use builder::PredictiveBuilder;
pub use policy::Predictive;
