//! Attention on any device: chunks of queries, candle's products of matrices, and kernels between them.

mod composed;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(test)]
mod tests;

use candle_core::{D, Device, Result, Tensor};

use super::rule::{Rule, Sizes, wide};

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

/// Some queries of all heads and samples, and the keys that any of them sees.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    first: usize,
    queries: usize,
    keys: usize,
}

/// With more queries, fewer keys would be left out where a query does not see all.
const MOST_QUERIES: usize = 1024;

/// Chunks of at most this many scores, if a query of all heads has not more.
fn chunks(rule: &Rule, most_scores: usize) -> impl Iterator<Item = Chunk> + use<'_> {
    let sizes = rule.sizes;
    let of_query = (sizes.batch * sizes.heads * sizes.keys).max(1);
    let most = (most_scores / of_query).clamp(1, MOST_QUERIES);
    (0..sizes.queries).step_by(most).map(move |first| {
        let queries = most.min(sizes.queries - first);
        let keys = rule.seen(first + queries - 1).end;
        Chunk {
            first,
            queries,
            keys,
        }
    })
}

impl Chunk {
    /// The chunk's part of a tensor of (batch, heads, queries, …).
    fn of(&self, tensor: &Tensor) -> Result<Tensor> {
        tensor.narrow(2, self.first, self.queries)?.contiguous()
    }

    /// The chunk's queries, scaled, as (batch, key heads, group · queries, width): scores that are scaled
    /// first do not overflow in f16.
    fn scaled(&self, rule: &Rule, q: &Tensor) -> Result<Tensor> {
        let q = (q.narrow(2, self.first, self.queries)? * rule.scale)?;
        group(&rule.sizes, &q)
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
}

/// (batch, heads, rows, width) as (batch, key heads, group · rows, width).
fn group(sizes: &Sizes, tensor: &Tensor) -> Result<Tensor> {
    let width = tensor.dim(D::Minus1)?;
    tensor.reshape((sizes.batch, sizes.key_heads, (), width))
}

/// Keys and values, laid out for candle's products.
struct Keys {
    sizes: Sizes,
    k: Tensor,
    v: Tensor,
}

impl Keys {
    fn new(rule: &Rule, k: &Tensor, v: &Tensor) -> Result<Self> {
        Ok(Self {
            sizes: rule.sizes,
            k: k.contiguous()?,
            v: v.contiguous()?,
        })
    }

    fn group(&self, tensor: &Tensor) -> Result<Tensor> {
        group(&self.sizes, tensor)
    }

    /// (batch, key heads, group · queries, width) as (batch, heads, queries, width).
    fn ungroup(&self, chunk: &Chunk, tensor: &Tensor) -> Result<Tensor> {
        let width = tensor.dim(D::Minus1)?;
        tensor.reshape((self.sizes.batch, self.sizes.heads, chunk.queries, width))
    }

    /// q · kᵀ of grouped queries, as (batch, heads, queries, keys).
    fn scores(&self, chunk: &Chunk, q: &Tensor) -> Result<Tensor> {
        let k = self.k.narrow(2, 0, chunk.keys)?;
        self.ungroup(chunk, &q.matmul(&k.t()?)?)
    }

    /// weights · v, as (batch, heads, queries, value width).
    fn outputs(&self, chunk: &Chunk, weights: &Tensor) -> Result<Tensor> {
        let v = self.v.narrow(2, 0, chunk.keys)?;
        self.ungroup(chunk, &self.group(weights)?.matmul(&v)?)
    }

    /// The gradients of weights, given the grouped gradients of the output.
    fn gradients(&self, chunk: &Chunk, gradient: &Tensor) -> Result<Tensor> {
        let v = self.v.narrow(2, 0, chunk.keys)?;
        self.ungroup(chunk, &gradient.matmul(&v.t()?)?)
    }

    /// The gradients of scaled queries, given those of scores.
    fn queries(&self, chunk: &Chunk, scores: &Tensor) -> Result<Tensor> {
        let k = self.k.narrow(2, 0, chunk.keys)?;
        self.ungroup(chunk, &self.group(scores)?.matmul(&k)?)
    }

    /// Adds leftᵀ · right to the gradients of the chunk's keys or values. `right` is grouped.
    fn add(&self, into: &Tensor, chunk: &Chunk, left: &Tensor, right: &Tensor) -> Result<()> {
        let product = self.group(left)?.t()?.matmul(right)?;
        let sum = (into.narrow(2, 0, chunk.keys)? + product.to_dtype(into.dtype())?)?;
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
