//! The optimizer [`Fused`]: its parts that do not depend on the device.

mod adjustment;
mod builder;
mod check;
mod commit;
mod engine;
mod loss_scale;
mod managed;
mod optimizer;
mod parameters;
mod reader;
mod state;

pub use adjustment::{Adjustment, Counters, Progress};
pub use builder::FusedBuilder;
pub use loss_scale::LossScale;
pub use managed::{Managed, Origin, Snapshot, Update};
pub use optimizer::Fused;
