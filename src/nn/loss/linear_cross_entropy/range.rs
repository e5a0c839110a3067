//! Keeps the gradients of logits in the range of f16.

use candle_core::{Device, Result, Tensor};

/// What the largest weight of a token becomes. No gradient exceeds a token's weight, but for the z-loss.
const LARGEST: f64 = 16384.;
/// log Σ e^logit up to which the z-loss makes no gradient larger.
const WHOLE: f64 = 1024.;
/// Divides weights that are all 0.
const LEAST: f64 = 1e-30;

/// Weights of tokens, all multiplied so that f16 holds the gradients of logits, and what undoes that, one element.
///
/// The largest weight decides, without waiting for the device. Without a z-loss, f16 then loses only gradients below
/// 2⁻³⁹ of it (half of the least number of f16, 2⁻²⁴, over 2¹⁴), however small or large the weights are.
pub fn fit(
    weights: Option<&Tensor>,
    tokens: usize,
    z_loss: f64,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    // A power of two, which rounds nothing.
    let largest = (LARGEST / (1. + 2. * z_loss * WHOLE)).log2().floor().exp2();
    let Some(weights) = weights else {
        // CUDA may refuse to allocate nothing.
        let weights = Tensor::full(largest as f32, tokens.max(1), device)?;
        return Ok((weights, Tensor::full(1. / largest as f32, (), device)?));
    };
    let unit = (weights.max_all()?.maximum(LEAST)? / largest)?;
    Ok((weights.broadcast_div(&unit)?, unit))
}
