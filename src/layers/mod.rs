//! Which layers hold the memory.
//!
//! [`LayerMemory`] attributes memory to the spans that a model opens; a [`LayerReport`] is a table, a flame graph, or a section of
//! [`Timeline`](crate::Timeline)'s page.

mod hooks;
mod ledger;
mod memory;
mod path;
mod report;
mod shared;
mod text;
mod tracker;
mod unit;

pub(crate) use hooks::{Guard, largest, phase, piece};
#[cfg(feature = "nn")]
pub(crate) use hooks::{again, last, place};
pub use memory::{LayerMemory, SpanLayer};
pub use report::{LayerReport, LayerRow, RowKind};
pub use text::FlameGraph;
pub use unit::Work;
