//! The policy that predicts what fits. `size` chooses the size from what `shape` knows about samples of one shape: the largest
//! cost that fits, what failed (`ceiling`) and what is faster (`pace`). `policy` tells them what happened.

mod builder;
mod ceiling;
mod choice;
mod pace;
mod policy;
mod room;
mod shape;
mod shapes;
mod size;
mod trial;

pub use builder::PredictiveBuilder;
pub use policy::Predictive;
