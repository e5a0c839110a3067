mod hooks;
mod ledger;
mod memory;
mod path;
mod report;
mod shared;
mod table;
mod tracker;
mod unit;

pub(crate) use hooks::{Guard, largest, phase, piece};
#[cfg(feature = "nn")]
pub(crate) use hooks::{again, last, place};
pub use memory::{LayerMemory, SpanLayer};
pub use report::{LayerReport, LayerRow, RowKind};
pub use unit::Work;
