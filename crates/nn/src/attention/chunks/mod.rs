//! Attention on any device: parts of samples and heads, in them chunks of queries, products of matrices, and kernels between them. Scores and
//! sums are in the type of sums.

mod composed;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(test)]
mod tests;
#[cfg(feature = "cuda")]
mod views;

use std::ops::Range;

use candle_core::{D, DType, Device, Result, Tensor};

use super::rule::{Rule, Sizes, wide};
#[cfg(feature = "cuda")]
use crate::kernel::cuda;

/// How many scores a chunk has at most. With their gradients and what both become in the type of the inputs they take 4 MiB on the CPU and
/// 256 MiB elsewhere; candle's operations, on Metal and for a learned mask, take several times that. Free memory has no influence, so that
/// bits do not depend on it.
pub fn most_scores(dtype: DType, device: &Device) -> usize {
    let bytes = match device.is_cpu() {
        true => 4 << 20,
        false => 256 << 20,
    };
    bytes / (2 * (wide(dtype).size_in_bytes() + dtype.size_in_bytes()))
}

/// The output as (batch, queries, heads, value width), and the statistics as (batch, heads, queries, 2). Chunks have at most `most` scores, if a
/// query of one key head has not more.
pub fn forward(rule: &Rule, all: [&Tensor; 3], most: usize) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if all[0].device().is_cuda() {
        return views::forward(rule, all, most);
    }
    let parts = Part::of(&rule.sizes, most);
    let (mut outputs, mut statistics) = (Vec::new(), Vec::new());
    for part in &parts {
        let rule = rule.part(&part.samples, &part.key_heads)?;
        let [q, k, v] = all.map(|tensor| part.narrow(tensor));
        let (output, of_part) = forward_part(&rule, [&q?, &k?, &v?], most)?;
        outputs.push(output);
        statistics.push(of_part);
    }
    Ok((
        joined(&parts, &outputs, 2)?,
        joined(&parts, &statistics, 1)?,
    ))
}

fn forward_part(rule: &Rule, [q, k, v]: [&Tensor; 3], most: usize) -> Result<(Tensor, Tensor)> {
    let (sizes, dtype, device) = (rule.sizes, q.dtype(), q.device());
    let output = (sizes.batch, sizes.queries, sizes.heads, sizes.value_width);
    let output = Tensor::zeros(output, dtype, device)?;
    let mut statistics = Vec::new();
    let (k, v) = (k.contiguous()?, v.contiguous()?);
    for chunk in chunks(rule, most) {
        if chunk.keys == 0 {
            let rows = (sizes.batch, sizes.heads, chunk.queries, 2);
            statistics.push(Tensor::zeros(rows, wide(dtype), device)?);
            continue;
        }
        let q = chunk.group(&chunk.of(q)?)?;
        let scores = chunk.scores(rule.scale, &q, &k)?;
        let [weights, of_chunk] = composed::weights(&chunk, &scores, dtype)?;
        let values = chunk.group(&weights)?.matmul(&chunk.seen(&v)?)?;
        let values = chunk.ungroup(&values)?.transpose(1, 2)?.contiguous()?;
        output.slice_set(&values, 1, chunk.first)?;
        statistics.push(of_chunk);
    }
    Ok((output, Tensor::cat(&statistics, 2)?))
}

/// The gradients of q, k, v and, if asked for, of the mask.
pub fn backward(
    rule: &Rule,
    all: [&Tensor; 5],
    statistics: &Tensor,
    of_mask: bool,
    most: usize,
) -> Result<[Option<Tensor>; 4]> {
    #[cfg(feature = "cuda")]
    if statistics.device().is_cuda() && !of_mask {
        let [dq, dk, dv] = views::backward(rule, all, statistics, most)?;
        return Ok([Some(dq), Some(dk), Some(dv), None]);
    }
    let parts = match of_mask {
        true => vec![Part::whole(&rule.sizes)], // the mask's gradient adds up samples and heads
        false => Part::of(&rule.sizes, most),
    };
    let (mut found, mut dmask) = ([const { Vec::new() }; 3], None);
    for part in &parts {
        let rule = rule.part(&part.samples, &part.key_heads)?;
        let [q, k, v, output, gradient] = all.map(|tensor| part.narrow(tensor));
        let all = [&q?, &k?, &v?, &output?, &gradient?];
        let statistics = part.narrow(statistics)?;
        let (gradients, of_part) = backward_part(&rule, all, &statistics, of_mask, most)?;
        for (found, gradient) in found.iter_mut().zip(gradients) {
            found.push(gradient);
        }
        dmask = of_part;
    }
    let [dq, dk, dv] = found.map(|found| joined(&parts, &found, 1));
    Ok([Some(dq?), Some(dk?), Some(dv?), dmask])
}

fn backward_part(
    rule: &Rule,
    [q, k, v, output, gradient]: [&Tensor; 5],
    statistics: &Tensor,
    of_mask: bool,
    most: usize,
) -> Result<([Tensor; 3], Option<Tensor>)> {
    let (dtype, device) = (q.dtype(), q.device());
    let (k, v) = (k.contiguous()?, v.contiguous()?);
    let dq = Tensor::zeros(q.shape(), dtype, device)?;
    let dk = Tensor::zeros(k.shape(), wide(dtype), device)?;
    let dv = Tensor::zeros(v.shape(), wide(dtype), device)?;
    let mut dmask = match rule.mask.as_ref().filter(|_| of_mask) {
        Some(mask) => Some(Tensor::zeros(mask.shape(), wide(dtype), device)?),
        None => None,
    };
    for chunk in chunks(rule, most) {
        if chunk.keys == 0 {
            continue;
        }
        let rows = [
            chunk.of(statistics)?,
            chunk.of(output)?,
            chunk.of(gradient)?,
        ];
        let (q, gradient) = (chunk.group(&chunk.of(q)?)?, chunk.group(&rows[2])?);
        let scores = chunk.scores(rule.scale, &q, &k)?;
        let gradients = chunk.scores(1., &gradient, &v)?;
        let found = composed::differentiate(&chunk, [scores, gradients], rows.each_ref(), of_mask)?;
        let (weights, scores) = (chunk.group(&found.weights)?, chunk.group(&found.scores)?);
        chunk.add(1., &dv, &weights.t()?, &gradient)?;
        chunk.add(rule.scale, &dk, &scores.t()?, &q)?;
        let of_chunk = product(rule.scale, &scores, &chunk.seen(&k)?)?;
        dq.slice_set(&chunk.ungroup(&of_chunk.to_dtype(dtype)?)?, 2, chunk.first)?;
        if let (Some(into), Some(from)) = (&mut dmask, found.mask) {
            into_rows(into, &chunk, &from)?;
        }
    }
    let dmask = dmask.map(|dmask| dmask.to_dtype(dtype)).transpose()?;
    Ok(([dq, dk.to_dtype(dtype)?, dv.to_dtype(dtype)?], dmask))
}

/// Some samples with all their key heads, or some key heads of one sample.
struct Part {
    samples: Range<usize>,
    key_heads: Range<usize>,
    /// Key heads of all parts of a sample.
    of_sample: usize,
}

impl Part {
    fn whole(sizes: &Sizes) -> Self {
        Self {
            samples: 0..sizes.batch,
            key_heads: 0..sizes.key_heads,
            of_sample: sizes.key_heads,
        }
    }

    /// Parts of which a chunk with many queries has at most so many scores. Chunks of few queries of all samples and heads would each read all keys
    /// and values, and add to all of their gradients.
    fn of(sizes: &Sizes, most_scores: usize) -> Vec<Self> {
        let queries = sizes.queries.min(MOST_QUERIES);
        let of_pair = (sizes.group() * queries).saturating_mul(sizes.keys).max(1);
        let (pairs, of_sample) = ((most_scores / of_pair).max(1), sizes.key_heads);
        let (samples, key_heads) = match pairs / of_sample {
            0 => (1, pairs),
            samples => (samples, of_sample),
        };
        let ranges = |all: usize, each: usize| {
            (0..all)
                .step_by(each)
                .map(move |first| first..(first.saturating_add(each)).min(all))
        };
        let parts = ranges(sizes.batch, samples).flat_map(|samples| {
            ranges(of_sample, key_heads).map(move |key_heads| Self {
                samples: samples.clone(),
                key_heads,
                of_sample,
            })
        });
        parts.collect()
    }

    /// The part of a tensor of (batch, heads or key heads, …).
    fn narrow(&self, tensor: &Tensor) -> Result<Tensor> {
        let (samples, heads) = (&self.samples, &self.key_heads);
        let each = tensor.dim(1)? / self.of_sample;
        let tensor = tensor.narrow(0, samples.start, samples.len())?;
        tensor.narrow(1, heads.start * each, heads.len() * each)
    }
}

/// Puts together what was computed for parts, with heads in this dimension.
fn joined(parts: &[Part], tensors: &[Tensor], of_heads: usize) -> Result<Tensor> {
    let heads = parts.first().map_or(1, |part| part.key_heads.len());
    let of_sample = parts
        .first()
        .map_or(1, |part| part.of_sample.div_ceil(heads));
    let samples = tensors.chunks(of_sample);
    let samples: Result<Vec<_>> = samples.map(|heads| Tensor::cat(heads, of_heads)).collect();
    Tensor::cat(&samples?, 0)
}

/// What a chunk of scores contributes to gradients.
struct Found {
    /// Weights after dropout.
    weights: Tensor,
    /// The gradient of scores before soft capping and after scaling.
    scores: Tensor,
    mask: Option<Tensor>,
}

/// `factor` · a · b in the type of sums. Where candle multiplies, it does so in the type of `a`.
fn product(factor: f64, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if a.device().is_cuda() {
        return cuda::product_of(factor, a, b, wide(a.dtype()));
    }
    scaled(factor, &a.matmul(b)?.to_dtype(wide(a.dtype()))?)
}

fn scaled(factor: f64, tensor: &Tensor) -> Result<Tensor> {
    match factor == 1. {
        true => Ok(tensor.clone()),
        false => tensor * factor,
    }
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
const TILE: usize = 64;

/// Chunks of at most this many scores, if a query of all heads has not more.
fn chunks(rule: &Rule, most_scores: usize) -> impl Iterator<Item = Chunk<'_>> {
    let sizes = rule.sizes;
    let of_query = (sizes.batch * sizes.heads * sizes.keys).max(1);
    let most = match (most_scores / of_query).clamp(1, MOST_QUERIES) {
        // cuBLAS's fast products take multiples of 8, and are fastest with whole tiles.
        many @ TILE.. => many - many % TILE,
        few => few,
    };
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

    /// What the chunk sees of a tensor of (batch, key heads, keys, …).
    fn seen(&self, tensor: &Tensor) -> Result<Tensor> {
        tensor.narrow(2, 0, self.keys)
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
        match sizes.group() {
            1 => Ok(tensor.clone()),
            _ => tensor.reshape((sizes.batch, sizes.key_heads, (), width)),
        }
    }

    /// The other way.
    fn ungroup(&self, tensor: &Tensor) -> Result<Tensor> {
        let (sizes, width) = (self.rule.sizes, tensor.dim(D::Minus1)?);
        tensor.reshape((sizes.batch, sizes.heads, self.queries, width))
    }

    /// `factor` · x · yᵀ of something grouped and of keys or values, as (batch, heads, queries, keys), in the type of sums.
    fn scores(&self, factor: f64, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let y = self.seen(y)?.t()?;
        self.ungroup(&match x.device().is_cuda() {
            true => product(factor, x, &y)?,
            // Scores of f16 that are scaled first do not overflow.
            false => product(1., &scaled(factor, x)?, &y)?,
        })
    }

    /// Adds `factor` · a · b to the gradients of the keys or values that the chunk sees, in the type of sums.
    fn add(&self, factor: f64, into: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
        let seen = self.seen(into)?;
        #[cfg(feature = "cuda")]
        if a.device().is_cuda() {
            return cuda::put_product(factor, true, &seen, a, b);
        }
        let sum = (seen + product(1., a, &scaled(factor, b)?)?)?;
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
