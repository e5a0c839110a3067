//! How gradients and parameters move: in place, without temporaries, as a whole or not at all.

#[cfg(feature = "cuda")]
mod axes;
mod blend;
mod commit;
mod cpu;
mod cuda;
mod fused;
mod rule;
mod schedule;

pub(crate) use blend::blend;
pub use commit::{Commit, Foreign};
pub use fused::{Fused, FusedBuilder, Group, GroupOptions, LossScale, Progress, StateDict};
pub use rule::{ParamsAdafactor, ParamsAdam, ParamsLion, ParamsSgd};
pub use schedule::LearningRate;

pub use candle_nn::ParamsAdamW;

/// Adam with decoupled weight decay (Loshchilov & Hutter 2017, arXiv 1711.05101), as PyTorch's and candle's. It takes candle's
/// own [`ParamsAdamW`].
pub type AdamW = Fused<ParamsAdamW>;

/// Adam (Kingma & Ba 2014, arXiv 1412.6980), with an L2 penalty, as PyTorch's.
pub type Adam = Fused<ParamsAdam>;

/// Stochastic gradient descent with momentum, Nesterov's momentum and an L2 penalty, as PyTorch's.
pub type Sgd = Fused<ParamsSgd>;

/// Lion (Chen et al. 2023, arXiv 2302.06675): the sign of a momentum, with half of AdamW's state.
pub type Lion = Fused<ParamsLion>;

/// Adafactor (Shazeer & Stern 2018, arXiv 1804.04235), as PyTorch's: of a matrix's second moment it keeps the sums of rows and
/// columns, so its state is next to nothing.
pub type Adafactor = Fused<ParamsAdafactor>;

/// A rule by which parameters move, named by its hyper-parameters; this crate's own, and no others.
///
/// ```
/// use candle_headroom::{Algorithm, Fused, Group, Result};
///
/// fn build<A: Algorithm>(parameters: Group, params: A) -> Result<Fused<A>> {
///     Fused::new(parameters, params)
/// }
/// ```
pub trait Algorithm: rule::Rule {}

impl Algorithm for ParamsAdafactor {}
impl Algorithm for ParamsAdam {}
impl Algorithm for ParamsAdamW {}
impl Algorithm for ParamsLion {}
impl Algorithm for ParamsSgd {}
