//! The optimizer [`Fused`]: its parts that do not depend on the device.

mod adjustment;
mod builder;
mod check;
mod commit;
mod engine;
mod managed;
mod optimizer;
mod progress;
mod reader;
mod setup;
mod state;

pub use adjustment::LossScale;
pub use builder::FusedBuilder;
pub use engine::{Engine, Loaded, Snapshot, states};
pub use managed::Managed;
pub use optimizer::Fused;
pub use progress::Progress;
pub use setup::Setup;
