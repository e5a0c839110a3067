//! Attention on any device: chunks of queries, candle's products of matrices, and kernels between them.

mod chunk;
mod composed;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(test)]
mod tests;

use candle_core::{Device, Result, Tensor};

use super::rule::{Rule, wide};
use chunk::{Chunk, Keys, chunks, into_rows};

/// Bytes of a chunk of scores.
fn most_bytes(device: &Device) -> usize {
    match device.is_cpu() {
        true => 4 << 20,
        false => 64 << 20,
    }
}

/// The output as (batch, queries, heads, value width), and the statistics as (batch, heads, queries, 2).
pub fn forward(rule: &Rule, [q, k, v]: [&Tensor; 3]) -> Result<(Tensor, Tensor)> {
    let (sizes, dtype, device) = (rule.sizes, q.dtype(), q.device());
    let output = (sizes.batch, sizes.queries, sizes.heads, sizes.value_width);
    let output = Tensor::zeros(output, dtype, device)?;
    let mut statistics = Vec::new();
    let keys = Keys::new(rule, k, v)?;
    for chunk in chunks(rule, most_bytes(device) / dtype.size_in_bytes()) {
        if chunk.keys == 0 {
            let rows = (sizes.batch, sizes.heads, chunk.queries, 2);
            statistics.push(Tensor::zeros(rows, wide(dtype), device)?);
            continue;
        }
        let scores = keys.scores(&chunk, &chunk.scaled(rule, q)?)?;
        let (weights, of_chunk) = weights(rule, &chunk, scores)?;
        let values = keys.outputs(&chunk, &weights)?;
        let values = values.transpose(1, 2)?.contiguous()?;
        output.slice_set(&values, 1, chunk.first)?;
        statistics.push(of_chunk);
    }
    Ok((output, Tensor::cat(&statistics, 2)?))
}

/// The gradients of q, k, v and, if asked for, of the mask.
pub fn backward(
    rule: &Rule,
    [q, k, v, output, gradient]: [&Tensor; 5],
    statistics: &Tensor,
    of_mask: bool,
) -> Result<[Option<Tensor>; 4]> {
    let (dtype, device) = (q.dtype(), q.device());
    let keys = Keys::new(rule, k, v)?;
    let dq = Tensor::zeros(q.shape(), dtype, device)?;
    let dk = Tensor::zeros(k.shape(), wide(dtype), device)?;
    let dv = Tensor::zeros(v.shape(), wide(dtype), device)?;
    let mut dmask = match rule.mask.as_ref().filter(|_| of_mask) {
        Some(mask) => Some(Tensor::zeros(mask.shape(), wide(dtype), device)?),
        None => None,
    };
    for chunk in chunks(rule, most_bytes(device) / dtype.size_in_bytes()) {
        if chunk.keys == 0 {
            continue;
        }
        let q = chunk.scaled(rule, q)?;
        let gradient = chunk.of(gradient)?;
        let sums = (gradient.to_dtype(wide(dtype))? * chunk.of(output)?.to_dtype(wide(dtype))?)?;
        let rows = [&chunk.of(statistics)?, &sums.sum(3)?];
        let gradient = keys.group(&gradient)?;
        let scores = keys.scores(&chunk, &q)?;
        let gradients = keys.gradients(&chunk, &gradient)?;
        let found = differentiate(rule, &chunk, [scores, gradients], rows, of_mask)?;
        keys.add(&dv, &chunk, &found.weights, &gradient)?;
        keys.add(&dk, &chunk, &found.scores, &q)?;
        let of_chunk = (keys.queries(&chunk, &found.scores)? * rule.scale)?;
        dq.slice_set(&of_chunk, 2, chunk.first)?;
        if let (Some(into), Some(from)) = (&mut dmask, found.mask) {
            into_rows(into, &chunk, &from)?;
        }
    }
    let dmask = dmask.map(|dmask| dmask.to_dtype(dtype)).transpose()?;
    Ok([
        Some(dq),
        Some(dk.to_dtype(dtype)?),
        Some(dv.to_dtype(dtype)?),
        dmask,
    ])
}

/// What a chunk of scores contributes to gradients.
struct Found {
    /// Weights after dropout.
    weights: Tensor,
    /// The gradient of scores before soft capping and after scaling.
    scores: Tensor,
    mask: Option<Tensor>,
}

/// Turns scores into weights; also the statistics.
fn weights(rule: &Rule, chunk: &Chunk, scores: Tensor) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if scores.device().is_cuda() {
        let statistics = kernels::weights(rule, chunk, &scores)?;
        return Ok((scores, statistics));
    }
    composed::weights(rule, chunk, &scores)
}

/// Given scores and the gradients of weights, and for each row the statistics and Σ weight · gradient.
fn differentiate(
    rule: &Rule,
    chunk: &Chunk,
    [scores, gradients]: [Tensor; 2],
    rows: [&Tensor; 2],
    of_mask: bool,
) -> Result<Found> {
    #[cfg(feature = "cuda")]
    if scores.device().is_cuda() && !of_mask {
        kernels::differentiate(rule, chunk, [&scores, &gradients], rows)?;
        return Ok(Found {
            weights: scores,
            scores: gradients,
            mask: None,
        });
    }
    composed::differentiate(rule, chunk, [&scores, &gradients], rows, of_mask)
}
