//! Names of what is in saved state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The document with hyper-parameters, options and counters.
pub const OPTIMIZER: &str = "optimizer";
/// The document of a rank's state that says which elements it is of: [`Pieces`] for each parameter.
pub const PIECES: &str = "pieces";

/// How often a parameter was updated.
pub const STEP: &str = "step";
/// A parameter's master weights.
pub const MASTER: &str = "master";

/// The name of a tensor.
pub fn entry(parameter: &str, name: &str) -> String {
    format!("{parameter}.{name}")
}

/// The elements of one parameter whose state a rank has. Its tensors hold them range after range.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pieces {
    /// Elements of the whole parameter.
    pub elements: usize,
    /// The first element of each range, and the one behind its last.
    pub ranges: Vec<(usize, usize)>,
    /// The shapes of the whole tensors of state.
    pub shapes: BTreeMap<String, Vec<usize>>,
}
