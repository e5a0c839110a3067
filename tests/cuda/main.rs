//! candle's CUDA backend under this crate: on the simulated driver, or on a real GPU with `HEADROOM_CUDA=real`. Tests that need
//! the simulator, such as a fault at a chosen launch, are skipped on a real GPU. `HEADROOM_POINTS=7:3` tests every 7th point of a step
//! from the third on, instead of all.

#[macro_use]
mod control;
#[path = "../support/mod.rs"]
mod support;

mod accumulation;
mod adaptation;
mod allocate_only;
#[path = "../support/candle_operations/mod.rs"]
mod candle_operations;
#[path = "../../crates/nn/tests/nn/check.rs"]
mod check;
mod distributed;
mod environment;
mod equality;
mod exhaustion;
mod faults;
#[path = "../../crates/nn/tests/nn/functions/mod.rs"]
mod functions;
mod gpu;
mod gradients;
mod jobs;
mod large;
#[cfg(feature = "layers")]
mod layer_memory;
mod layers;
mod limits;
mod memory;
mod monitor;
#[path = "../promises/no_hidden_synchronization.rs"]
mod no_hidden_synchronization;
mod offload;
mod optimizers;
#[path = "../support/points.rs"]
mod points;
mod recovery;
#[path = "../../crates/nn/tests/nn/gradients/replacements.rs"]
mod replacements;
mod simulator;
mod staging;
