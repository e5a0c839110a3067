//! Ranks on GPUs, one process each, on the simulator's NCCL.

mod every_point;
mod faults;
mod launch;
mod moves;
mod refused;
mod training;
