//! Every function, layer and loss of `candle_headroom::nn`, each with arguments that it can be given.
#![allow(dead_code)] // each test binary uses its own part

pub mod alone;
mod attention;
mod caches;
mod case;
mod elements;
mod images;
mod layers;
pub mod layouts;
mod losses;
mod rows;

pub use case::{Argument, Case, Kind};

/// The cases of all functions.
pub fn all() -> Vec<Case> {
    let groups = [
        elements::cases(),
        images::cases(),
        rows::cases(),
        layers::cases(),
        attention::cases(),
        caches::cases(),
        losses::cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// Public names of `nn` that are in no case, and why.
pub const EXCLUDED: &[(&str, &str)] = &[
    ("AdamW", "an optimizer"),
    ("SGD", "an optimizer"),
    ("backward", "walks a graph, and has tests of its own"),
    ("audit", "runs a whole model, and has tests of its own"),
    ("Audit", "a report"),
    ("AuditBuilder", "options of audit"),
    ("AuditError", "an error"),
    ("Audited", "a report"),
    ("Slope", "a report"),
    ("Received", "a report"),
    ("RecomputeError", "an error"),
    ("SecondRun", "an error"),
    ("Offload", "runs a closure; tests/cuda/offload has its own"),
    ("OffloadStats", "counts"),
    ("IndexRangeError", "an error"),
    ("is_recomputing", "returns no tensor"),
    ("seeded", "runs a closure; the cases of dropout use it"),
    ("RegionInputs", "a trait"),
    ("RegionOutputs", "a trait"),
    ("BatchNormConfig", "an argument of batch_norm"),
    ("LayerNormConfig", "an argument of layer_norm"),
    ("attention::AttnMask", "an argument of flash_attn"),
    ("kv_cache::Pair", "KvCache and RotatingKvCache"),
    ("kv_cache::Ring", "Cache and RotatingCache"),
    ("kv_cache::ScatteredCacheBuilder", "makes ScatteredKvCache"),
    ("loss::Classes", "an argument of linear_cross_entropy"),
    ("loss::LossSum", "what linear_cross_entropy_sum returns"),
];
