//! Tells a watcher what happens in the host's allocator. The feature `layers` brings the one watcher.

#[cfg(not(feature = "layers"))]
mod disabled;
#[cfg(feature = "layers")]
mod enabled;

#[cfg(not(feature = "layers"))]
pub(super) use disabled::{allocated, exhausted, freed};
#[cfg(feature = "layers")]
pub(crate) use enabled::{HostEvent, unwatch, watch};
#[cfg(feature = "layers")]
pub(super) use enabled::{allocated, exhausted, freed};
