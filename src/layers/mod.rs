//! Which layers hold the memory.
//!
//! [`LayerMemory`] attributes memory to the spans that a model opens; a [`LayerReport`] is a table, a flame graph, or a section of
//! [`Timeline`](crate::Timeline)'s page.

#[cfg(feature = "layers")]
mod hooks;
#[cfg(not(feature = "layers"))]
#[path = "no_hooks.rs"]
mod hooks;
#[cfg(feature = "layers")]
mod ledger;
#[cfg(feature = "layers")]
mod memory;
#[cfg(feature = "layers")]
mod path;
#[cfg(feature = "layers")]
mod report;
#[cfg(feature = "layers")]
mod shared;
#[cfg(feature = "layers")]
mod text;
#[cfg(feature = "layers")]
mod tracker;
#[cfg(feature = "layers")]
mod unit;

pub(crate) use hooks::{Guard, largest, phase, piece};
#[cfg(feature = "nn")]
pub(crate) use hooks::{again, last, place};
#[cfg(feature = "layers")]
pub use memory::{LayerMemory, SpanLayer};
#[cfg(feature = "layers")]
pub use report::{LayerReport, LayerRow, RowKind};
#[cfg(feature = "layers")]
pub use text::FlameGraph;
#[cfg(feature = "layers")]
pub use unit::Work;
