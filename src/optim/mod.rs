//! Optimizers that update all parameters in place or none, without temporaries.

mod blend;
mod both;
#[allow(unsafe_code, reason = "a conversion without a branch, and AVX2")]
mod coded;
mod commit;
mod cpu;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "launches kernels")]
mod cuda;
mod ema;
mod foreign;
mod fused;
mod group;
mod rule;
mod schedule;
mod state_dict;

pub use candle_nn::ParamsAdamW;

pub(crate) use blend::blend;
pub use both::Both;
pub use commit::{Commit, Committed};
pub use ema::Ema;
pub use foreign::Foreign;
pub(crate) use fused::check_shape;
pub use fused::{Fused, FusedBuilder, LossScale, Progress};
#[doc(hidden)]
pub use group::Shard;
pub use group::{Group, GroupOptions, Moments, Parameter};
pub use rule::{Algorithm, ParamsAdam, ParamsLion, ParamsSgd};
pub use schedule::{LearningRate, LearningRateBuilder};
pub use state_dict::StateDict;
pub(crate) use state_dict::{PIECES, file_header, place_in_file, take_pieces};

/// Adam with decoupled weight decay (Loshchilov & Hutter 2017, arXiv 1711.05101), as in PyTorch and candle; takes candle's
/// [`ParamsAdamW`].
pub type AdamW = Fused<ParamsAdamW>;

/// Adam (Kingma & Ba 2014, arXiv 1412.6980), with an L2 penalty, as in PyTorch.
pub type Adam = Fused<ParamsAdam>;

/// Stochastic gradient descent with momentum, Nesterov momentum and an L2 penalty, as in PyTorch.
pub type Sgd = Fused<ParamsSgd>;

/// Lion (Chen et al. 2023, arXiv 2302.06675): the sign of a momentum, with half of AdamW's state.
pub type Lion = Fused<ParamsLion>;
