use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::unfit::{VERSION, read_json};
use crate::error::CheckpointError;

pub(super) const STATE: &str = "state.json";

/// What is saved besides tensors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) version: u32,
    /// The crate and its version.
    pub(super) written_by: String,
    pub(super) step: u64,
    /// The error that made this a rescue, which has no tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rescued_from: Option<String>,
    /// Finite numbers.
    pub(super) metrics: BTreeMap<String, f64>,
    /// The metadata of the trainer's state.
    pub(super) training: BTreeMap<String, String>,
    /// The caller's own values.
    pub(super) values: BTreeMap<String, Value>,
}

impl Document {
    pub(super) fn new(step: u64) -> Self {
        Self {
            version: VERSION,
            written_by: concat!("candle-headroom ", env!("CARGO_PKG_VERSION")).to_owned(),
            step,
            ..Self::default()
        }
    }

    /// Of the checkpoint at `path`.
    pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Self, CheckpointError> {
        read_json(path, STATE, bytes)
    }
}
