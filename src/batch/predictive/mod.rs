//! The policy that predicts what fits, split by what decides: the model and the forward pass (`fits`), failures (`ceiling`),
//! trying where nothing is measured (`probing`), and speed (`pace`); for each shape of samples (`regime`, `shapes`).

mod builder;
mod ceiling;
mod explained;
mod fits;
mod pace;
mod policy;
mod probing;
mod regime;
mod saved;
mod shapes;

pub use builder::PredictiveBuilder;
pub use policy::Predictive;
