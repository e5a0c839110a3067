//! Losses of [`candle_nn::loss`]. [`cross_entropy`] is one operation, which keeps nothing of the size of the logits;
//! [`linear_cross_entropy`] does not even hold the logits.
//!
//! Every loss is a mean over what counts: over the rows whose target is a class ([`cross_entropy`], [`nll`],
//! [`linear_cross_entropy`]), or over all elements ([`mse`], [`huber`], [`binary_cross_entropy_with_logit`]). It is 0 if nothing
//! counts. For f16 and bf16 the loss is f32, and its gradient is in the type of the input.
//!
//! A batch that is cut into micro-batches has the mean of all its rows only if each mean is weighted by the number of rows that it
//! counts: [`linear_cross_entropy_sum`] returns both, and a trainer of candle-headroom takes
//! `Loss::weighted_mean` for the others.

pub(super) mod cross_entropy;
mod elements;
pub(super) mod linear_cross_entropy;
mod targets;

pub use cross_entropy::{cross_entropy, nll};
pub use elements::{binary_cross_entropy_with_logit, huber, mse};
pub use linear_cross_entropy::{
    Classes, LinearCrossEntropy, LossSum, linear_cross_entropy, linear_cross_entropy_sum,
};
