//! Attention on any device: parts of samples and heads, in them chunks of queries, products of matrices, and kernels between them. Scores and
//! sums are in the type of sums. Parts write into results that all of them share. On CUDA products read views of the inputs and write into views
//! of the results, and kernels find the rows of a chunk among those of all samples, so that little is copied.

mod composed;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(test)]
mod tests;

use std::ops::Range;

use candle_core::{D, DType, Device, Result, Tensor};

use super::rule::{NAME, Rule, Sizes, wide};
use crate::kernel::{cuda, dense, product, scaled};

/// How many scores a chunk has at most. With their gradients and what both become in the type of the inputs they take 4 MiB on the CPU and
/// the rule's bytes elsewhere; candle's operations, on Metal and for a learned mask, take several times that. Free memory has no influence, so
/// that bits do not depend on it.
pub fn most_scores(rule: &Rule, dtype: DType, device: &Device) -> usize {
    let bytes = match device.is_cpu() {
        true => 4 << 20,
        false => rule.chunk,
    };
    bytes / (2 * (wide(dtype).size_in_bytes() + dtype.size_in_bytes()))
}

/// The output as (batch, queries, heads, value width), and the statistics as (batch, heads, queries, 2). Chunks have at most `most` scores, if a
/// query of one key head has not more.
pub fn forward(rule: &Rule, all: [&Tensor; 3], most: usize) -> Result<(Tensor, Tensor)> {
    let (sizes, dtype, device) = (rule.sizes, all[0].dtype(), all[0].device());
    let output = (sizes.batch, sizes.queries, sizes.heads, sizes.value_width);
    let mut output = Tensor::zeros(output, dtype, device)?;
    let statistics = (sizes.batch, sizes.heads, sizes.queries, 2);
    let statistics = Tensor::zeros(statistics, wide(dtype), device)?;
    let (parts, most) = cut(&sizes, most, device);
    for part in &parts {
        let rule = rule.part(&part.samples, &part.key_heads)?;
        let [q, k, v] = all.map(|tensor| part.narrow(tensor));
        let (q, k, v) = (q?, regular(&k?)?, regular(&v?)?);
        for chunk in chunks(&rule, most).filter(|chunk| chunk.keys > 0) {
            let scores = chunk.scores(rule.scale, &chunk.rows(&q)?, &k)?;
            let weights = weights(&chunk, part, &scores, &statistics, dtype)?;
            if chunk.writes_output(device) {
                let into = part.narrow(&output.transpose(1, 2)?)?;
                chunk.write_output(&into, &weights, &chunk.seen(&v)?)?;
                continue;
            }
            let values = product(1., &chunk.shaped(&weights)?, &chunk.columns(&v)?, dtype)?;
            let values = dense(NAME, &chunk.ungroup(&values)?.transpose(1, 2)?)?;
            if values.dims() == output.dims() {
                output = values;
                continue;
            }
            let into = output.narrow(0, part.samples.start, part.samples.len())?;
            // Of one sample there may be a part of the heads.
            let rows = into.narrow(1, chunk.first, chunk.queries)?;
            match rule.sizes.batch {
                1 => rows.slice_set(&values, 2, rule.first_head % rule.all_heads)?,
                _ => into.slice_set(&values, 1, chunk.first)?,
            }
        }
    }
    Ok((output, statistics))
}

/// The gradients of q, k, v and, if asked for, of the mask.
pub fn backward(
    rule: &Rule,
    all: [&Tensor; 5],
    statistics: &Tensor,
    of_mask: bool,
    most: usize,
) -> Result<[Option<Tensor>; 4]> {
    let [q, k, v, output, gradient] = all;
    let (sizes, dtype, device) = (rule.sizes, q.dtype(), q.device());
    // As the output lies in memory.
    let gradient = dense(NAME, &gradient.transpose(1, 2)?)?.transpose(1, 2)?;
    let rows = [statistics, output, &gradient];
    let (parts, most) = match of_mask {
        true => (vec![Part::whole(&sizes)], most), // the mask's gradient adds up samples and heads
        false => cut(&sizes, most, device),
    };
    let adds = most < usize::MAX;
    let of_sums = if adds { wide(dtype) } else { dtype };
    let zeros = |like: &Tensor, dtype| Tensor::zeros(like.shape(), dtype, device);
    // Sums of all key heads, if they take no more than a chunk. Else those of a part, which are rounded when they are complete.
    let bytes = (k.elem_count() + v.elem_count()) * of_sums.size_in_bytes();
    let is_whole = of_sums == dtype || of_mask || bytes <= rule.chunk;
    let of_all = if is_whole { of_sums } else { dtype };
    let found = [zeros(q, dtype)?, zeros(k, of_all)?, zeros(v, of_all)?];
    let mask = rule.mask.as_ref().filter(|_| of_mask);
    let mut dmask = mask.map(|mask| zeros(mask, of_sums)).transpose()?;
    for part in &parts {
        let rule = rule.part(&part.samples, &part.key_heads)?;
        let [q, k, v, gradient] = [q, k, v, &gradient].map(|tensor| part.narrow(tensor));
        let (q, k, v, gradient) = (q?, regular(&k?)?, regular(&v?)?, gradient?);
        let [dq, dk, dv] = found.each_ref().map(|tensor| part.narrow(tensor));
        let dq = dq?;
        let [dk, dv] = match is_whole {
            true => [dk?, dv?],
            false => [zeros(&k, of_sums)?, zeros(&v, of_sums)?],
        };
        for chunk in chunks(&rule, most).filter(|chunk| chunk.keys > 0) {
            let (q, gradient) = (chunk.rows(&q)?, chunk.rows(&gradient)?);
            let scores = chunk.scores(rule.scale, &q, &k)?;
            let gradients = chunk.scores(1., &gradient, &v)?;
            let found = differentiate(&chunk, part, [scores, gradients], rows, of_mask)?;
            let weights = chunk.group(&found.weights)?.t()?;
            chunk.add(1., adds, &dv, &weights, &chunk.group(&gradient)?)?;
            let of_scores = chunk.group(&found.scores)?.t()?;
            chunk.add(rule.scale, adds, &dk, &of_scores, &chunk.group(&q)?)?;
            chunk.write(&dq, &chunk.shaped(&found.scores)?, &chunk.columns(&k)?)?;
            if let (Some(into), Some(from)) = (&mut dmask, found.mask) {
                into_rows(into, &chunk, &from)?;
            }
        }
        if !is_whole {
            for (all, sums) in found.iter().skip(1).zip([dk, dv]) {
                let of_samples = all.narrow(0, part.samples.start, part.samples.len())?;
                of_samples.slice_set(&sums.to_dtype(dtype)?, 1, part.key_heads.start)?;
            }
        }
    }
    let [dq, dk, dv] = found;
    let (dk, dv) = (dk.to_dtype(dtype)?, dv.to_dtype(dtype)?);
    let dmask = dmask.map(|dmask| dmask.to_dtype(dtype)).transpose()?;
    Ok([Some(dq), Some(dk), Some(dv), dmask])
}

/// Parts, and how many scores a chunk has at most. On CUDA chunks of several key heads that query heads share have all queries, so that nothing
/// has to be copied.
fn cut(sizes: &Sizes, most: usize, device: &Device) -> (Vec<Part>, usize) {
    let of_key_head = (sizes.group() * sizes.queries).saturating_mul(sizes.keys);
    match sizes.group() {
        // A part is a chunk, whose number of queries is not rounded.
        _ if !device.is_cuda() => (Part::of(sizes, most), most),
        _ if sizes.queries <= MOST_QUERIES && of_key_head <= most => {
            (Part::of(sizes, most), usize::MAX)
        }
        1 => (Part::of(sizes, most), most),
        _ => (Part::of(sizes, 1), most),
    }
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

/// What a chunk of scores contributes to gradients.
struct Found {
    /// Weights after dropout.
    weights: Tensor,
    /// The gradient of scores before soft capping and after scaling.
    scores: Tensor,
    mask: Option<Tensor>,
}

/// The weights in a type. Writes the statistics into those of all samples.
fn weights(
    chunk: &Chunk,
    part: &Part,
    scores: &Tensor,
    statistics: &Tensor,
    dtype: DType,
) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if scores.device().is_cuda() {
        return kernels::weights(chunk, scores, statistics, dtype);
    }
    let [weights, of_chunk] = composed::weights(chunk, scores, dtype)?;
    let statistics = part.narrow(statistics)?;
    statistics.slice_set(&of_chunk.contiguous()?, 2, chunk.first)?;
    Ok(weights)
}

/// Given scores and the gradients of weights, and for all samples the statistics, the output and its gradient as (batch, heads, queries, …).
fn differentiate(
    chunk: &Chunk,
    part: &Part,
    scores: [Tensor; 2],
    rows: [&Tensor; 3],
    of_mask: bool,
) -> Result<Found> {
    #[cfg(feature = "cuda")]
    if rows[0].device().is_cuda() && !of_mask {
        let [weights, scores] = kernels::differentiate(chunk, scores, rows)?;
        return Ok(Found {
            weights,
            scores,
            mask: None,
        });
    }
    let rows = rows.map(|tensor| chunk.of(&part.narrow(tensor)?)?.contiguous());
    let [statistics, output, gradient] = rows;
    composed::differentiate(chunk, scores, [&statistics?, &output?, &gradient?], of_mask)
}

/// A tensor whose matrices products can read as they lie in memory.
fn regular(tensor: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if tensor.device().is_cuda() {
        return cuda::regular(tensor);
    }
    tensor.contiguous()
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
        tensor.narrow(2, self.first, self.queries)
    }

    /// The same, for products with keys and values.
    fn rows(&self, tensor: &Tensor) -> Result<Tensor> {
        self.shaped(&regular(&self.of(tensor)?)?)
    }

    /// (batch, heads, queries, …) for such products. Heads that share a key head are one matrix, but for a part of the queries of one key head on
    /// CUDA, which would have to be copied.
    fn shaped(&self, tensor: &Tensor) -> Result<Tensor> {
        match self.is_by_head(tensor.device()) {
            true => Ok(tensor.clone()),
            false => self.group(tensor),
        }
    }

    fn is_by_head(&self, device: &Device) -> bool {
        let sizes = self.rule.sizes;
        let is_view = sizes.batch * sizes.key_heads == 1 && self.queries < sizes.queries;
        sizes.group() == 1 || device.is_cuda() && is_view
    }

    /// What the chunk sees of (batch, key heads, keys, …), for products with rows.
    fn columns(&self, tensor: &Tensor) -> Result<Tensor> {
        let (sizes, seen) = (self.rule.sizes, self.seen(tensor)?);
        match self.is_by_head(tensor.device()) {
            true => seen.broadcast_as((sizes.batch, sizes.heads, self.keys, seen.dim(3)?)),
            false => Ok(seen),
        }
    }

    /// Whether weights · values are written into the output, where heads lie between others: for one sample, if its heads are matrices, or there
    /// are others. Else one product and a copy are less than a product for each sample and key head.
    fn writes_output(&self, device: &Device) -> bool {
        let sizes = self.rule.sizes;
        let is_one = device.is_cuda() && sizes.batch == 1;
        is_one && (self.is_by_head(device) || sizes.heads < self.rule.all_heads)
    }

    /// Given the part's view of the output, (1, heads, queries, value width), and the values that it sees.
    fn write_output(&self, into: &Tensor, weights: &Tensor, v: &Tensor) -> Result<()> {
        let (sizes, into) = (self.rule.sizes, self.of(into)?);
        let parts = match sizes.group() {
            1 => vec![Part::whole(&sizes)],
            _ => Part::of(&sizes, 1),
        };
        for part in parts {
            let [into, weights, v] = [&into, weights, v].map(|tensor| part.narrow(tensor));
            let (into, weights) = (into?, weights?);
            let v = v?.broadcast_as((1, into.dim(1)?, self.keys, sizes.value_width))?;
            cuda::put_product(1., false, &into, &weights, &v)?;
        }
        Ok(())
    }

    /// Writes scale · a · b into the part's gradients of queries.
    fn write(&self, dq: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
        let (scale, device, rows) = (self.rule.scale, a.device(), self.of(dq)?);
        if device.is_cuda() && (self.is_by_head(device) || rows.is_contiguous()) {
            return cuda::put_product(scale, false, &self.shaped(&rows)?, a, b);
        }
        let product = product(scale, a, b, wide(a.dtype()))?.to_dtype(dq.dtype())?;
        dq.slice_set(&self.ungroup(&product)?, 2, self.first)
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
            _ => dense(NAME, tensor)?.reshape((sizes.batch, sizes.key_heads, (), width)),
        }
    }

    /// The other way.
    fn ungroup(&self, tensor: &Tensor) -> Result<Tensor> {
        let (sizes, width) = (self.rule.sizes, tensor.dim(D::Minus1)?);
        tensor.reshape((sizes.batch, sizes.heads, self.queries, width))
    }

    /// `factor` · x · yᵀ of rows and of keys or values, as (batch, heads, queries, keys), in the type of sums.
    fn scores(&self, factor: f64, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (y, wide) = (self.columns(y)?.t()?, wide(x.dtype()));
        self.ungroup(&match x.device().is_cuda() {
            true => product(factor, x, &y, wide)?,
            // Scores of f16 that are scaled first do not overflow.
            false => product(1., &scaled(factor, x)?, &y, wide)?,
        })
    }

    /// Writes `factor` · a · b to the gradients of the keys or values that the chunk sees, or adds it in the type of sums.
    fn add(&self, factor: f64, adds: bool, into: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
        let seen = self.seen(into)?;
        if a.device().is_cuda() {
            return cuda::put_product(factor, adds, &seen, a, b);
        }
        let sum = (seen + product(1., a, &scaled(factor, b)?, into.dtype())?)?;
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
        _ => into.slice_set(&dense(NAME, &sum)?, 2, chunk.first)?,
    }
    Ok(())
}
