//! What trainers and recomputed regions tell of their work.

#[cfg(not(feature = "layers"))]
mod disabled;
#[cfg(feature = "layers")]
mod enabled;

#[cfg(not(feature = "layers"))]
pub(crate) use disabled::{Guard, again, largest, last, phase, piece, place};
#[cfg(feature = "layers")]
pub(crate) use enabled::{Guard, again, largest, last, phase, piece, place};
