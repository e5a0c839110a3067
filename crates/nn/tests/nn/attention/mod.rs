//! `nn::attention` and what is made of it.

mod dropout;
mod extremes;
mod flash;
mod masks;
mod packed;
mod shapes;

use candle_core::{D, DType, Result, Tensor};
use candle_headroom_nn::Attention;

use crate::check::numbers;

/// The same as plain operations of candle.
#[derive(Clone, Default)]
pub struct Plain {
    /// The key of this index is the last that the first query sees.
    pub last_seen: Option<i64>,
    pub mask: Option<Tensor>,
    pub scale: Option<f64>,
    pub softcap: Option<f64>,
    /// What weights are multiplied by after softmax.
    pub kept: Option<Tensor>,
}

impl Plain {
    pub fn run(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (_, heads, queries, width) = q.dims4()?;
        let (batch, key_heads, keys, _) = k.dims4()?;
        let repeated = |x: &Tensor| {
            let group = heads / key_heads;
            let shape = (batch, key_heads, group, keys, x.dim(3)?);
            x.unsqueeze(2)?
                .broadcast_as(shape)?
                .reshape((batch, heads, keys, x.dim(3)?))
        };
        let k = repeated(k)?.transpose(2, 3)?.contiguous()?;
        let scale = self.scale.unwrap_or(1. / (width as f64).sqrt());
        let mut scores = (q.contiguous()?.matmul(&k)? * scale)?;
        if let Some(cap) = self.softcap {
            scores = ((scores / cap)?.tanh()? * cap)?;
        }
        if let Some(mask) = &self.mask {
            scores = scores.broadcast_add(&mask.to_dtype(scores.dtype())?)?;
        }
        if let Some(last) = self.last_seen {
            let hidden = (0..queries as i64).flat_map(|query| {
                let hides = move |key: i64| {
                    if key > query + last {
                        f64::NEG_INFINITY
                    } else {
                        0.
                    }
                };
                (0..keys as i64).map(hides)
            });
            let hidden = Tensor::from_vec(hidden.collect(), (queries, keys), q.device())?;
            scores = scores.broadcast_add(&hidden.to_dtype(scores.dtype())?)?;
        }
        // A row of −∞ gives zeros.
        let least = match scores.dtype() {
            DType::F64 => f64::MIN,
            _ => f32::MIN.into(),
        };
        let most = scores.detach().max_keepdim(D::Minus1)?.maximum(least)?;
        let weights = scores.broadcast_sub(&most)?.exp()?;
        let sums = weights.sum_keepdim(D::Minus1)?.maximum(1e-30)?;
        let mut weights = weights.broadcast_div(&sums)?;
        if let Some(kept) = &self.kept {
            weights = (weights * kept.to_dtype(q.dtype())?)?;
        }
        weights.matmul(&repeated(v)?.contiguous()?)
    }
}

/// Options that mean the same.
pub fn options(plain: &Plain, q: &Tensor) -> Result<Attention> {
    let mut options = Attention::default();
    if let Some(last) = plain.last_seen {
        options = options.causal_from(last as usize);
    }
    if let Some(mask) = &plain.mask {
        options = options.mask(&mask.to_dtype(q.dtype())?);
    }
    if let Some(scale) = plain.scale {
        options = options.scale(scale);
    }
    if let Some(cap) = plain.softcap {
        options = options.softcap(cap);
    }
    Ok(options)
}

/// q, k and v for (batch, heads, key heads, queries, keys, width, value width).
pub fn inputs(sizes: [usize; 7]) -> [Tensor; 3] {
    let [batch, heads, key_heads, queries, keys, width, value_width] = sizes;
    [
        numbers(&[batch, heads, queries, width], 1),
        numbers(&[batch, key_heads, keys, width], 2),
        numbers(&[batch, key_heads, keys, value_width], 3),
    ]
}

/// Numbers that all types represent.
pub fn coarse(shape: &[usize], seed: u64) -> Result<Tensor> {
    (numbers(shape, seed) * 4.)?.round()? / 4.
}
