//! `candle_nn::attention`, differentiable: the matrix of scores is a tensor of the graph.

use candle_core::{D, DType, Result, Tensor, WithDType, bail};
pub use candle_nn::attention::*;

/// As candle's: (batch, sequence, heads, dim) in, (batch, heads, sequence, dim) out.
pub fn flash_attn<T: WithDType + num_traits::Float>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    attn_mask: AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    if max_bias.is_some_and(|bias| bias > 0.0) {
        bail!("ALiBi is not composed here: no model of candle-transformers asks for it")
    }
    let (q, k, v) = (q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?);
    let (mask, causal) = match &attn_mask {
        AttnMask::None => (None, None),
        AttnMask::Causal { kv_offset } => (None, Some(*kv_offset)),
        AttnMask::Mask(mask) => (Some(mask), None),
    };
    attend(
        &q,
        &k,
        &v,
        mask,
        causal,
        softmax_scale,
        softcap.filter(|cap| *cap != 0.0),
    )
}

/// Attention over (batch, heads, sequence, dim). `causal` is the position of the first query among the keys.
pub(crate) fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    causal: Option<usize>,
    scale: f32,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let (_, heads, queries, _) = q.dims4()?;
    let (k, v) = (repeat(k, heads)?, repeat(v, heads)?);
    let mut scores = (q.contiguous()?.matmul(&k.t()?.contiguous()?)? * scale as f64)?;
    if let Some(cap) = softcap {
        scores = ((scores / cap as f64)?.tanh()? * cap as f64)?;
    }
    if let Some(mask) = mask {
        scores = scores.broadcast_add(&mask.to_dtype(scores.dtype())?)?;
    }
    if let Some(offset) = causal {
        let keys = k.dim(2)?;
        let hidden = (0..queries).flat_map(|i| {
            (0..keys).map(move |j| {
                if j > i + offset {
                    f32::NEG_INFINITY
                } else {
                    0.0
                }
            })
        });
        let hidden = Tensor::from_iter(hidden, q.device())?.reshape((queries, keys))?;
        scores = scores.broadcast_add(&hidden.to_dtype(scores.dtype())?)?;
    }
    let weights = candle_nn::ops::softmax(&scores.to_dtype(DType::F32)?, D::Minus1)?;
    weights.to_dtype(v.dtype())?.matmul(&v.contiguous()?)
}

fn repeat(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, own, keys, dim) = x.dims4()?;
    if heads == own {
        return Ok(x.clone());
    }
    let x = x
        .unsqueeze(2)?
        .broadcast_as((batch, own, heads / own, keys, dim))?;
    x.reshape((batch, heads, keys, dim))
}
