use std::time::Duration;

use super::rotate::Keep;
use super::signal::Signal;

/// Options of `Checkpoints`.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) every_updates: Option<u64>,
    pub(super) every_duration: Option<Duration>,
    pub(super) keep: Keep,
    pub(super) shard_bytes: u64,
    pub(super) in_background: bool,
    pub(super) signals: Vec<Signal>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            every_updates: None,
            every_duration: None,
            keep: Keep {
                last: 3,
                ..Keep::default()
            },
            shard_bytes: 5_000_000_000,
            in_background: true,
            signals: Vec::new(),
        }
    }
}
