use candle_nn::ParamsAdamW;

use super::fused::Fused;
use super::rule::{ParamsAdafactor, ParamsAdam, ParamsLion, ParamsSgd};

/// Adam with decoupled weight decay (Loshchilov & Hutter 2017, arXiv 1711.05101), as in PyTorch and candle. It takes candle's
/// own [`ParamsAdamW`].
pub type AdamW = Fused<ParamsAdamW>;

/// Adam (Kingma & Ba 2014, arXiv 1412.6980), with an L2 penalty, as in PyTorch.
pub type Adam = Fused<ParamsAdam>;

/// Stochastic gradient descent with momentum, Nesterov momentum and an L2 penalty, as in PyTorch.
pub type Sgd = Fused<ParamsSgd>;

/// Lion (Chen et al. 2023, arXiv 2302.06675): the sign of a momentum, with half of AdamW's state.
pub type Lion = Fused<ParamsLion>;

/// Adafactor (Shazeer & Stern 2018, arXiv 1804.04235), as in PyTorch. For a matrix it keeps only the means of the rows and columns
/// of the second moment.
pub type Adafactor = Fused<ParamsAdafactor>;
