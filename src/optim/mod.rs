//! Optimizers that update all parameters in place or none, without temporaries.

mod algorithm;
mod axes;
mod blend;
mod commit;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod foreign;
mod fused;
mod group;
mod rule;
mod schedule;
mod state_dict;

pub use algorithm::{Adafactor, Adam, AdamW, Lion, Sgd};
pub(crate) use blend::blend;
pub use commit::{Commit, Committed};
pub use foreign::Foreign;
pub use fused::{Fused, FusedBuilder, LossScale, Progress};
pub use group::{Group, GroupOptions, Parameter};
pub use rule::{Algorithm, ParamsAdafactor, ParamsAdam, ParamsLion, ParamsSgd};
pub use schedule::LearningRate;
pub use state_dict::StateDict;

pub use candle_nn::ParamsAdamW;
