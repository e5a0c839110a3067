//! The optimizer [`Fused`]: its parts that do not depend on the device.

mod adjustment;
mod builder;
mod commit;
mod engine;
mod held;
mod managed;
mod optimizer;
mod reader;
mod setup;

pub use adjustment::{LossScale, Progress};
pub use builder::FusedBuilder;
#[cfg(feature = "cuda")]
pub use engine::kept_tensor;
pub use engine::{Engine, Loaded, Snapshot, misplaced, states};
#[cfg(feature = "cuda")]
pub use held::Held;
pub use held::{Halves, Moments};
pub use managed::{Managed, check_shape};
pub use optimizer::Fused;
pub use setup::Setup;
