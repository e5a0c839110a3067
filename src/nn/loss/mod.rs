//! Losses of [`candle_nn::loss`]. [`cross_entropy`] is one operation, which keeps nothing of the size of the logits;
//! [`linear_cross_entropy`] does not even hold the logits. [`nll`] and the others are candle's: `nll` already keeps one number
//! for each sample only.

pub(super) mod cross_entropy;
pub(super) mod linear_cross_entropy;
mod targets;

pub use candle_nn::loss::*;

pub use cross_entropy::cross_entropy;
pub use linear_cross_entropy::{
    LinearCrossEntropy, LossSum, linear_cross_entropy, linear_cross_entropy_sum,
};
pub(super) use targets::Targets;
