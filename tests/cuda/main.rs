//! candle's CUDA backend under this crate: on the simulated driver, or on a real GPU with `HEADROOM_CUDA=real`
//! (docs/testing.md). What only the simulator can do, such as a fault at a chosen launch, is passed over on a real GPU.

#[path = "../support/mod.rs"]
mod support;

mod accumulation;
mod adaptation;
mod environment;
mod equality;
mod exhaustion;
mod faults;
mod gpu;
mod jobs;
mod limits;
mod memory;
mod monitor;
#[path = "../promises/no_hidden_synchronization.rs"]
mod no_hidden_synchronization;
mod optimizers;
mod recovery;
mod simulator;
