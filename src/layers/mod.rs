//! Which layers hold the memory.
//!
//! [`LayerMemory`] attributes memory to the spans that a model opens; a [`LayerReport`] is a table, or a section of
//! [`Timeline`](crate::Timeline)'s page. Trainers and recomputed regions tell where their work begins and ends.

#[cfg(not(feature = "layers"))]
mod disabled;
#[cfg(feature = "layers")]
mod enabled;

#[cfg(not(feature = "layers"))]
use disabled as layers;
#[cfg(feature = "layers")]
use enabled as layers;

#[cfg(feature = "layers")]
pub use enabled::{LayerMemory, LayerReport, LayerRow, RowKind, SpanLayer, Work};
pub(crate) use layers::{Guard, largest, phase, piece};
#[cfg(feature = "nn")]
pub(crate) use layers::{again, last, place};
