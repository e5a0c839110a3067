//! Which layers hold the memory.
//!
//! [`LayerMemory`] attributes memory to the spans that a model opens; a [`LayerReport`] is a table, a flame graph, or a section of
//! [`Timeline`](crate::Timeline)'s page.
//!
//! The rows of a report sum up to the highest use of the process during one micro-batch or update, so nothing is counted twice or left
//! out: what no layer holds has rows of its own. Bytes come from the counters of [`DeviceMemory`](crate::DeviceMemory); without them they
//! are `None`, and calls and times are still there. The newest `LayerMemory` of a process measures. Without one, a trainer's phases cost
//! one read of an atomic number.

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
