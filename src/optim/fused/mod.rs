//! The optimizer [`Fused`]: its parts that do not depend on the device.

mod adjustment;
mod builder;
#[cfg(any(feature = "cuda", test))]
mod choice;
mod commit;
mod engine;
mod held;
mod host;
mod host_update;
mod managed;
mod optimizer;
mod pieces;
mod reader;
mod setup;
mod sharded;
mod state;

pub use adjustment::{LossScale, Progress};
pub use builder::FusedBuilder;
#[cfg(feature = "cuda")]
pub use choice::Choice;
#[cfg(feature = "cuda")]
pub use engine::kept_tensor;
pub use engine::{Engine, Loaded, Snapshot, misplaced, states};
pub use held::Halves;
pub use host_update::{HostUpdate, HostUpdates};
pub use managed::Managed;
pub use optimizer::Fused;
pub use setup::Setup;
