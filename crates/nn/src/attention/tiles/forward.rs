//! The forward pass of attention on the CPU: scores of some queries at a time, in a tile that stays in a core's cache. Tiles depend on sizes
//! alone, so results do not depend on the number of threads.

use candle_core::{Result, Tensor};

use super::rows::{Bias, View, cap, drop_out, exponentials, from_vec, only, views};
use crate::attention::rule::Rule;
use crate::kernel::matrix::{Matrix, MatrixMut, multiply};
use crate::kernel::{Number, max_of, sum_of, with_scratch};

/// Elements of a tile of scores, which should stay in a core's cache.
const TILE: usize = 1 << 17;
/// More queries than this do not make products faster.
const MOST_QUERIES: usize = 128;
const LEAST_QUERIES: usize = 16;
/// A computation is divided among the threads into about so many parts, if they do not get too small.
const PARTS: usize = 16;

/// The number of queries whose scores are computed at a time. It depends on sizes only, so that results do.
fn queries_at_once(rule: &Rule) -> usize {
    let sizes = rule.sizes;
    let of_tile = (TILE / sizes.keys.max(1)).clamp(LEAST_QUERIES, MOST_QUERIES);
    let of_part = (sizes.batch * sizes.queries).div_ceil(PARTS);
    of_tile.min(of_part.max(LEAST_QUERIES)).min(sizes.queries)
}

/// The output as (batch, queries, heads, value width), and the statistics as (batch, heads, queries, 2).
pub fn forward<T: Number>(rule: &Rule, inputs: [&Tensor; 3]) -> Result<(Tensor, Tensor)> {
    let locked = inputs.map(Tensor::storage_and_layout);
    let mask = rule.mask.as_ref().map(Tensor::storage_and_layout);
    let [q, k, v] = views::<T, 3>(&locked)?;
    let bias = Bias::new(rule, mask.as_ref())?;
    let (output, statistics) = Forward {
        rule,
        q,
        k,
        v,
        bias,
    }
    .run()?;
    Ok((output, statistics.transpose(1, 2)?))
}

struct Forward<'a, T> {
    rule: &'a Rule,
    q: View<'a, T>,
    k: View<'a, T>,
    v: View<'a, T>,
    bias: Bias<'a, T>,
}

impl<T: Number> Forward<'_, T> {
    /// The output as (batch, queries, heads, value width), and the statistics as (batch, queries, heads, 2).
    fn run(&self) -> Result<(Tensor, Tensor)> {
        let sizes = self.rule.sizes;
        let rows = sizes.queries * sizes.heads;
        let mut output = vec![T::zero(); sizes.batch * rows * sizes.value_width];
        let mut statistics = vec![[T::zero(); 2]; sizes.batch * rows];
        let queries = queries_at_once(self.rule);
        // What one thread writes is contiguous. A single query is divided by heads.
        let heads = match sizes.queries {
            1 => sizes.group(),
            _ => sizes.heads,
        };
        let part = queries * heads;
        let mut parts = Vec::new();
        let of_samples = output.chunks_mut(rows * sizes.value_width);
        let of_samples = of_samples.zip(statistics.chunks_mut(rows)).enumerate();
        for (batch, (output, statistics)) in of_samples {
            let of_parts = output.chunks_mut(part * sizes.value_width);
            let of_parts = of_parts.zip(statistics.chunks_mut(part)).enumerate();
            parts.extend(of_parts.map(|(index, written)| {
                let row = index * part;
                ([batch, row % sizes.heads, row / sizes.heads], written)
            }));
        }
        with_scratch(parts, |scores, _, (at, (output, statistics))| {
            self.part(at, heads, output, statistics, scores)
        })?;
        let shape = |width| (sizes.batch, sizes.queries, sizes.heads, width);
        let output = from_vec(output, shape(sizes.value_width));
        Ok((output, from_vec(statistics.into_flattened(), shape(2))))
    }

    /// Some queries and heads of a sample.
    fn part(
        &self,
        [batch, first_head, first]: [usize; 3],
        heads: usize,
        output: &mut [T],
        statistics: &mut [[T; 2]],
        scores: &mut Vec<T>,
    ) -> Result<()> {
        let (sizes, width) = (self.rule.sizes, self.rule.sizes.value_width);
        let queries = statistics.len() / heads;
        let from = self.rule.seen(first).start;
        let keys = self.rule.seen(first + queries - 1).end - from;
        if keys == 0 {
            return Ok(());
        }
        scores.resize(queries * keys, T::zero());
        let scale = T::from_f64(self.rule.scale);
        for head in 0..heads {
            let whole = first_head + head;
            let key_head = whole / sizes.group();
            let q = self.q.rows([batch, whole, first], queries)?;
            let k = self.k.rows([batch, key_head, from], keys)?.transposed();
            let into = MatrixMut::new(scores, [queries, keys], keys)?;
            multiply(into, false, scale, q, k)?;
            let rows = scores.chunks_mut(keys).zip(statistics.chunks_mut(heads));
            for (query, (scores, statistics)) in (first..).zip(rows) {
                if let Some(statistic) = statistics.get_mut(head) {
                    *statistic = self.weights([batch, whole, query], from, scores)?;
                }
            }
            let weights = Matrix::new(scores, [queries, keys], [keys, 1])?;
            let v = self.v.rows([batch, key_head, from], keys)?;
            let output = output.get_mut(head * width..).unwrap_or_default();
            let into = MatrixMut::new(output, [queries, width], heads * width)?;
            multiply(into, false, T::one(), weights, v)?;
        }
        Ok(())
    }

    /// Turns a row of scores, from a key on, into weights. Its maximum and 1 / the sum of exponentials; zeros for a row that sees
    /// nothing.
    fn weights(&self, at: [usize; 3], from: usize, scores: &mut [T]) -> Result<[T; 2]> {
        let [batch, head, query] = at;
        let seen = self.rule.seen_from(query, from);
        let key = from + seen.start;
        let scores = only(scores, seen);
        if let Some(most) = self.rule.softcap {
            cap(scores, T::from_f64(most));
        }
        self.bias.add_to(at, key, scores)?;
        let most = max_of(scores);
        if most == T::neg_infinity() && scores.iter().all(|score| *score == most) {
            scores.fill(T::zero());
            return Ok([T::zero(); 2]);
        }
        exponentials(scores, most);
        let inverse = sum_of(scores, scores, |x, _| x).recip();
        match &self.rule.dropout {
            None => scores.iter_mut().for_each(|x| *x *= inverse),
            Some(dropout) => {
                let first = self.rule.first_score(batch, head, query) + key as u64;
                drop_out(
                    scores,
                    dropout,
                    first,
                    T::from_f64(dropout.factor) * inverse,
                );
            }
        }
        Ok([most, inverse])
    }
}
