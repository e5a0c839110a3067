//! Attention on any device: chunks of queries, candle's products of matrices, and kernels between them.

mod composed;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(test)]
mod tests;

use candle_core::{D, Device, Result, Tensor};

use super::rule::{Rule, wide};

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
    let (k, v) = (k.contiguous()?, v.contiguous()?);
    for chunk in chunks(rule, most_bytes(device) / dtype.size_in_bytes()) {
        if chunk.keys == 0 {
            let rows = (sizes.batch, sizes.heads, chunk.queries, 2);
            statistics.push(Tensor::zeros(rows, wide(dtype), device)?);
            continue;
        }
        let scores = chunk.scores(&chunk.scaled(q)?, &k)?;
        let (weights, of_chunk) = weights(&chunk, scores)?;
        let values = chunk.sums(&weights, &v)?.transpose(1, 2)?.contiguous()?;
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
    let (k, v) = (k.contiguous()?, v.contiguous()?);
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
        let q = chunk.scaled(q)?;
        let gradient = chunk.of(gradient)?;
        let sums = (gradient.to_dtype(wide(dtype))? * chunk.of(output)?.to_dtype(wide(dtype))?)?;
        let rows = [&chunk.of(statistics)?, &sums.sum(3)?];
        let gradient = chunk.group(&gradient)?;
        let scores = [chunk.scores(&q, &k)?, chunk.scores(&gradient, &v)?];
        let found = differentiate(&chunk, scores, rows, of_mask)?;
        chunk.add(&dv, &found.weights, &gradient)?;
        chunk.add(&dk, &found.scores, &q)?;
        let of_chunk = (chunk.sums(&found.scores, &k)? * rule.scale)?;
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
fn weights(chunk: &Chunk, scores: Tensor) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if scores.device().is_cuda() {
        let statistics = kernels::weights(chunk, &scores)?;
        return Ok((scores, statistics));
    }
    composed::weights(chunk, &scores)
}

/// Given scores and the gradients of weights, and for each row the statistics and Σ weight · gradient.
fn differentiate(
    chunk: &Chunk,
    [scores, gradients]: [Tensor; 2],
    rows: [&Tensor; 2],
    of_mask: bool,
) -> Result<Found> {
    #[cfg(feature = "cuda")]
    if scores.device().is_cuda() && !of_mask {
        kernels::differentiate(chunk, [&scores, &gradients], rows)?;
        return Ok(Found {
            weights: scores,
            scores: gradients,
            mask: None,
        });
    }
    composed::differentiate(chunk, [&scores, &gradients], rows, of_mask)
}

/// Some queries of all heads and samples, and the keys that any of them sees.
#[derive(Debug, Clone, Copy)]
struct Chunk<'a> {
    rule: &'a Rule,
    first: usize,
    queries: usize,
    keys: usize,
}

/// With more queries, fewer keys would be left out where a query does not see all.
const MOST_QUERIES: usize = 1024;

/// Chunks of at most this many scores, if a query of all heads has not more.
fn chunks(rule: &Rule, most_scores: usize) -> impl Iterator<Item = Chunk<'_>> {
    let sizes = rule.sizes;
    let of_query = (sizes.batch * sizes.heads * sizes.keys).max(1);
    let most = (most_scores / of_query).clamp(1, MOST_QUERIES);
    (0..sizes.queries).step_by(most).map(move |first| {
        let queries = most.min(sizes.queries - first);
        let keys = rule.seen(first + queries - 1).end;
        Chunk {
            rule,
            first,
            queries,
            keys,
        }
    })
}

impl Chunk<'_> {
    /// The chunk's part of a tensor of (batch, heads, queries, …).
    fn of(&self, tensor: &Tensor) -> Result<Tensor> {
        tensor.narrow(2, self.first, self.queries)?.contiguous()
    }

    /// The chunk's queries, scaled, as (batch, key heads, group · queries, width): scores that are scaled
    /// first do not overflow in f16.
    fn scaled(&self, q: &Tensor) -> Result<Tensor> {
        let q = (q.narrow(2, self.first, self.queries)? * self.rule.scale)?;
        self.group(&q)
    }

    /// The chunk's part of a rule's mask.
    fn of_mask(&self, mask: &Tensor) -> Result<Tensor> {
        let mask = match mask.dim(2)? {
            1 => mask.clone(),
            _ => mask.narrow(2, self.first, self.queries)?,
        };
        match mask.dim(3)? {
            1 => Ok(mask),
            _ => mask.narrow(3, 0, self.keys),
        }
    }

    /// (batch, heads, queries, width) as (batch, key heads, group · queries, width).
    fn group(&self, tensor: &Tensor) -> Result<Tensor> {
        let (sizes, width) = (self.rule.sizes, tensor.dim(D::Minus1)?);
        tensor.reshape((sizes.batch, sizes.key_heads, (), width))
    }

    /// The other way.
    fn ungroup(&self, tensor: &Tensor) -> Result<Tensor> {
        let (sizes, width) = (self.rule.sizes, tensor.dim(D::Minus1)?);
        tensor.reshape((sizes.batch, sizes.heads, self.queries, width))
    }

    /// x · yᵀ of something grouped and of keys or values, as (batch, heads, queries, keys).
    fn scores(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        self.ungroup(&x.matmul(&y.narrow(2, 0, self.keys)?.t()?)?)
    }

    /// x · y of scores or weights and of keys or values, as (batch, heads, queries, width).
    fn sums(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        self.ungroup(&self.group(x)?.matmul(&y.narrow(2, 0, self.keys)?)?)
    }

    /// Adds leftᵀ · right to the gradients of the chunk's keys or values. `right` is grouped.
    fn add(&self, into: &Tensor, left: &Tensor, right: &Tensor) -> Result<()> {
        let product = self.group(left)?.t()?.matmul(right)?;
        let sum = (into.narrow(2, 0, self.keys)? + product.to_dtype(into.dtype())?)?;
        into.slice_set(&sum, 2, 0)
    }
}

/// Adds the gradients of a chunk's scores to the gradient of a mask, over the dimensions that are broadcast.
fn into_rows(into: &mut Tensor, chunk: &Chunk, scores: &Tensor) -> Result<()> {
    let mut sum = scores.clone();
    for dim in [0, 1, 2, 3] {
        if into.dim(dim)? == 1 {
            sum = sum.sum_keepdim(dim)?;
        }
    }
    let hidden = into.dim(3)?.saturating_sub(sum.dim(3)?);
    let sum = sum.pad_with_zeros(3, 0, hidden)?;
    match into.dim(2)? {
        1 => *into = (&*into + sum)?,
        _ => into.slice_set(&sum.contiguous()?, 2, chunk.first)?,
    }
    Ok(())
}
