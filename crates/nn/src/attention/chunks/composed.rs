//! What happens to a chunk of scores, by candle's operations.

use candle_core::{D, DType, Result, Tensor};

use super::{Chunk, Found};
use crate::attention::rule::Dropout;
use crate::bounds::at_least;

pub fn weights(chunk: &Chunk, scores: &Tensor, dtype: DType) -> Result<[Tensor; 2]> {
    let scores = Logits::new(chunk, scores)?;
    // At least a number: a row of −∞ gives zeros.
    let most = scores.masked.max_keepdim(D::Minus1)?;
    let most = at_least(&most, least(most.dtype()))?;
    let exponentials = scores.masked.broadcast_sub(&most)?.exp()?;
    // The largest is 1, so the sum is less only where there are none.
    let sums = at_least(&exponentials.sum_keepdim(D::Minus1)?, 1.)?;
    let inverses = sums.recip()?;
    let mut weights = exponentials.broadcast_mul(&inverses)?;
    if let Some(dropout) = &chunk.rule.dropout {
        weights = (weights * kept(chunk, dropout, &scores.masked)?)?;
    }
    let statistics = Tensor::cat(&[most, inverses], D::Minus1)?;
    Ok([weights.to_dtype(dtype)?, statistics])
}

pub fn differentiate(
    chunk: &Chunk,
    [scores, mut gradients]: [Tensor; 2],
    [statistics, output, gradient]: [&Tensor; 3],
    of_mask: bool,
) -> Result<Found> {
    let (dtype, wide) = (output.dtype(), scores.dtype());
    // Σ weight · gradient of each row.
    let sums = (output.to_dtype(wide)? * gradient.to_dtype(wide)?)?.sum_keepdim(D::Minus1)?;
    let scores = Logits::new(chunk, &scores)?;
    let (most, inverses) = (statistics.narrow(3, 0, 1)?, statistics.narrow(3, 1, 1)?);
    let exponentials = scores.masked.broadcast_sub(&most)?.exp()?;
    let mut weights = exponentials.broadcast_mul(&inverses)?;
    let dropout = chunk.rule.dropout.as_ref();
    let kept = dropout.map(|dropout| kept(chunk, dropout, &weights));
    let kept = kept.transpose()?;
    if let Some(kept) = &kept {
        gradients = (gradients * kept)?;
    }
    gradients = (&weights * gradients.broadcast_sub(&sums)?)?;
    if let Some(kept) = &kept {
        weights = (weights * kept)?;
    }
    let mask = of_mask.then(|| gradients.clone());
    if let Some(slopes) = &scores.slopes {
        gradients = (gradients * slopes)?;
    }
    Ok(Found {
        weights: weights.to_dtype(dtype)?,
        scores: gradients.to_dtype(dtype)?,
        mask,
    })
}

/// The least number of a type of statistics.
fn least(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN,
        _ => f64::from(f32::MIN),
    }
}

/// What softmax takes.
struct Logits {
    masked: Tensor,
    /// The derivatives of soft capping.
    slopes: Option<Tensor>,
}

impl Logits {
    fn new(chunk: &Chunk, scores: &Tensor) -> Result<Self> {
        let rule = chunk.rule;
        let mut masked = scores.clone();
        let mut slopes = None;
        if let Some(cap) = rule.softcap {
            let tanh = (masked / cap)?.tanh()?;
            slopes = Some((1. - tanh.sqr()?)?);
            masked = (tanh * cap)?;
        }
        if let Some(mask) = &rule.mask {
            let mask = chunk.of_mask(mask)?.to_dtype(masked.dtype())?;
            masked = masked.broadcast_add(&mask)?;
        }
        if let Some(slopes) = &rule.slopes {
            let slopes = slopes.reshape((1, (), 1, 1))?;
            let distances = each_pair(chunk, &masked, |query, key| {
                (query as i64 + rule.offset - key as i64).unsigned_abs() as f32
            })?;
            masked = masked.broadcast_sub(&slopes.broadcast_mul(&distances)?)?;
        }
        let last = chunk.first + chunk.queries;
        if (chunk.first..last).any(|query| rule.seen(query) != (0..chunk.keys)) {
            let hidden = each_pair(chunk, &masked, |query, key| match rule.seen(query) {
                seen if seen.contains(&key) => 0.,
                _ => f32::NEG_INFINITY,
            })?;
            masked = masked.broadcast_add(&hidden)?;
        }
        Ok(Self { masked, slopes })
    }
}

/// A function of a chunk's queries and keys.
fn each_pair(chunk: &Chunk, like: &Tensor, value: impl Fn(usize, usize) -> f32) -> Result<Tensor> {
    let queries = chunk.first..chunk.first + chunk.queries;
    let values = queries.flat_map(|query| (0..chunk.keys).map(move |key| (query, key)));
    let values: Vec<_> = values.map(|(query, key)| value(query, key)).collect();
    let values = Tensor::from_vec(values, (chunk.queries, chunk.keys), like.device())?;
    values.to_dtype(like.dtype())
}

/// 0 for dropped weights, else what they are multiplied by.
fn kept(chunk: &Chunk, dropout: &Dropout, like: &Tensor) -> Result<Tensor> {
    let (rule, sizes) = (chunk.rule, chunk.rule.sizes);
    let mut values = Vec::with_capacity(like.elem_count());
    for batch in 0..sizes.batch {
        for head in 0..sizes.heads {
            for query in chunk.first..chunk.first + chunk.queries {
                let keeps = dropout.keeps(rule.first_score(batch, head, query));
                let of_row = keeps.take(chunk.keys);
                values.extend(of_row.map(|keeps| if keeps { dropout.factor } else { 0. }));
            }
        }
    }
    Tensor::from_vec(values, like.shape(), like.device())?.to_dtype(like.dtype())
}
