//! What the library's types do on the host, by type or by file that they write. No allocator is installed here.

mod accumulator;
mod audit;
mod batch;
mod batch_norm;
#[path = "../../crates/nn/tests/nn/check.rs"]
mod check;
mod check_cut;
mod checkpoint;
#[path = "../../benches/adaptation/curves.rs"]
mod curves;
mod data;
mod dry_run;
mod ema;
mod engine;
mod error;
mod foreign;
mod group_strangers;
mod group_tree;
mod groups;
mod halves;
mod incidents;
mod linear_cross_entropy;
mod loops;
mod memory_model;
#[cfg(feature = "metrics")]
mod metrics;
mod monitor;
mod no_allocator;
#[path = "../support/nvml.rs"]
mod nvml;
#[cfg(feature = "nvtx")]
mod nvtx;
mod optimizer_state;
mod optimizer_tables;
mod optimizers;
mod predictive;
mod process_batches;
mod recompute;
mod rollback;
mod sinks;
#[path = "../../benches/adaptation/steps.rs"]
mod steps;
#[path = "../support/mod.rs"]
mod support;
mod testing;
mod timeline;
mod trainer;
mod trainer_optimizers;
mod unreached;
mod windows;
