//! `candle_nn::ops`, differentiable.

use candle_core::{D, Result, Tensor};
pub use candle_nn::ops::*;

pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    candle_nn::ops::softmax(xs, D::Minus1)
}

pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    candle_nn::ops::rms_norm_slow(xs, alpha, eps)
}

pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    candle_nn::ops::layer_norm_slow(xs, alpha, beta, eps)
}

/// Queries (batch, heads, sequence, dim), keys and values with as many heads or a divisor of them; an additive mask.
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    let offset = do_causal
        .then(|| k.dims4().map(|k| k.2))
        .transpose()?
        .unwrap_or(0);
    let offset = offset.saturating_sub(q.dim(2)?);
    let softcap = (softcapping != 1.0).then_some(softcapping);
    crate::attention::attend(q, k, v, mask, do_causal.then_some(offset), scale, softcap)
}
