//! Regions that models mark with `nn::recompute`: what surrounds them, and what their second runs did.

#[cfg(not(feature = "nn"))]
mod disabled;
#[cfg(feature = "nn")]
mod enabled;

use std::time::{Duration, Instant};

use crate::error::MemoryReading;

#[cfg(not(feature = "nn"))]
pub(crate) use disabled::{Held, Surroundings, Watched, frozen, seeded, watch};
#[cfg(feature = "nn")]
pub(crate) use enabled::{Held, Surroundings, Watched, frozen, seeded, watch};

/// The second run of a region, with its backward pass.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "nn"),
    allow(dead_code, reason = "without the feature there are none")
)]
pub(crate) struct Again {
    pub(crate) began: Instant,
    pub(crate) elapsed: Duration,
    /// At its end.
    pub(crate) memory: MemoryReading,
    pub(crate) succeeded: bool,
}
