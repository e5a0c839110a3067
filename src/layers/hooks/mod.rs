//! What trainers and recomputed regions tell of their work.

#[cfg(not(feature = "layers"))]
mod disabled;
#[cfg(feature = "layers")]
mod enabled;

#[cfg(not(feature = "layers"))]
use disabled as hooks;
#[cfg(feature = "layers")]
use enabled as hooks;

#[cfg(feature = "layers")]
pub(in crate::layers) use hooks::measured;
pub(crate) use hooks::{Guard, largest, phase, piece};
#[cfg(feature = "nn")]
pub(crate) use hooks::{again, last, place};
