//! A chunk of queries, and its products with keys and values.

use candle_core::{D, Result, Tensor};

use crate::attention::rule::{Rule, Sizes};

/// Some queries of all heads and samples, and the keys that any of them sees.
#[derive(Debug, Clone, Copy)]
pub struct Chunk {
    pub first: usize,
    pub queries: usize,
    pub keys: usize,
}

/// With more queries, fewer keys would be left out where a query does not see all.
const MOST_QUERIES: usize = 1024;

/// Chunks of at most this many scores, if a query of all heads has not more.
pub fn chunks(rule: &Rule, most_scores: usize) -> impl Iterator<Item = Chunk> + use<'_> {
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
    pub fn of(&self, tensor: &Tensor) -> Result<Tensor> {
        tensor.narrow(2, self.first, self.queries)?.contiguous()
    }

    /// The chunk's queries, scaled, as (batch, key heads, group · queries, width): scores that are scaled
    /// first do not overflow in f16.
    pub fn scaled(&self, rule: &Rule, q: &Tensor) -> Result<Tensor> {
        let q = (q.narrow(2, self.first, self.queries)? * rule.scale)?;
        group(&rule.sizes, &q)
    }

    /// The chunk's part of a rule's mask.
    pub fn of_mask(&self, mask: &Tensor) -> Result<Tensor> {
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
pub struct Keys {
    sizes: Sizes,
    k: Tensor,
    v: Tensor,
}

impl Keys {
    pub fn new(rule: &Rule, k: &Tensor, v: &Tensor) -> Result<Self> {
        Ok(Self {
            sizes: rule.sizes,
            k: k.contiguous()?,
            v: v.contiguous()?,
        })
    }

    pub fn group(&self, tensor: &Tensor) -> Result<Tensor> {
        group(&self.sizes, tensor)
    }

    /// (batch, key heads, group · queries, width) as (batch, heads, queries, width).
    fn ungroup(&self, chunk: &Chunk, tensor: &Tensor) -> Result<Tensor> {
        let width = tensor.dim(D::Minus1)?;
        tensor.reshape((self.sizes.batch, self.sizes.heads, chunk.queries, width))
    }

    /// q · kᵀ of grouped queries, as (batch, heads, queries, keys).
    pub fn scores(&self, chunk: &Chunk, q: &Tensor) -> Result<Tensor> {
        let k = self.k.narrow(2, 0, chunk.keys)?;
        self.ungroup(chunk, &q.matmul(&k.t()?)?)
    }

    /// weights · v, as (batch, heads, queries, value width).
    pub fn outputs(&self, chunk: &Chunk, weights: &Tensor) -> Result<Tensor> {
        let v = self.v.narrow(2, 0, chunk.keys)?;
        self.ungroup(chunk, &self.group(weights)?.matmul(&v)?)
    }

    /// The gradients of weights, given the grouped gradients of the output.
    pub fn gradients(&self, chunk: &Chunk, gradient: &Tensor) -> Result<Tensor> {
        let v = self.v.narrow(2, 0, chunk.keys)?;
        self.ungroup(chunk, &gradient.matmul(&v.t()?)?)
    }

    /// The gradients of scaled queries, given those of scores.
    pub fn queries(&self, chunk: &Chunk, scores: &Tensor) -> Result<Tensor> {
        let k = self.k.narrow(2, 0, chunk.keys)?;
        self.ungroup(chunk, &self.group(scores)?.matmul(&k)?)
    }

    /// Adds leftᵀ · right to the gradients of the chunk's keys or values. `right` is grouped.
    pub fn add(&self, into: &Tensor, chunk: &Chunk, left: &Tensor, right: &Tensor) -> Result<()> {
        let product = self.group(left)?.t()?.matmul(right)?;
        let sum = (into.narrow(2, 0, chunk.keys)? + product.to_dtype(into.dtype())?)?;
        into.slice_set(&sum, 2, 0)
    }
}

/// Adds the gradients of a chunk's scores to the gradient of a mask, over the dimensions that are broadcast.
pub fn into_rows(into: &mut Tensor, chunk: &Chunk, scores: &Tensor) -> Result<()> {
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
