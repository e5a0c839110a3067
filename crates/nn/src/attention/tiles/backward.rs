//! The backward pass of attention on the CPU: scores are computed again, in tiles of 128 queries and 256 keys. Each gradient is a sum of the
//! same terms in the same order, however threads share the tiles.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::rows::{Bias, View, cap, drop_out, exponentials, from_vec, misfit, only, views};
use crate::attention::rule::Rule;
use crate::kernel::matrix::{Matrix, MatrixMut, multiply};
use crate::kernel::{Number, sum_of_products, with_scratch};

/// Size of a tile of scores.
const QUERIES: usize = 128;
const KEYS: usize = 256;

/// What a tile is computed in: weights, their gradients, and the derivatives of a cap.
type Scratch<T> = [Vec<T>; 3];

/// What one thread computes: tiles of some queries and keys of heads that share a key head, counted over all samples.
struct Area<'a, T> {
    heads: Range<usize>,
    queries: Range<usize>,
    keys: Range<usize>,
    /// The gradients that its tiles add to: of the queries, and of keys and values.
    dq: Option<&'a mut [T]>,
    of_keys: Option<[&'a mut [T]; 2]>,
}

/// The gradients of q, k and v; none of the mask. Given q, k, v, the output and its gradient, all as (batch, heads, …).
pub fn backward<T: Number>(
    rule: &Rule,
    [q, k, v, output, gradient]: [&Tensor; 5],
    statistics: &Tensor,
) -> Result<[Option<Tensor>; 4]> {
    let dense = |tensor: &Tensor| match tensor.stride().last() {
        Some(1) => Ok(tensor.clone()),
        _ => tensor.contiguous(),
    };
    let (output, gradient) = (dense(output)?, dense(gradient)?);
    let inputs = [q, k, v, &output, &gradient, statistics];
    let locked = inputs.map(Tensor::storage_and_layout);
    let mask = rule.mask.as_ref().map(Tensor::storage_and_layout);
    let [q, k, v, output, gradient, statistics] = views::<T, 6>(&locked)?;
    let backward = Backward {
        rule,
        q,
        k,
        v,
        output,
        gradient,
        statistics,
        bias: Bias::new(rule, mask.as_ref())?,
    };
    let [dq, dk, dv] = backward.run()?;
    Ok([Some(dq), Some(dk), Some(dv), None])
}

struct Backward<'a, T> {
    rule: &'a Rule,
    q: View<'a, T>,
    k: View<'a, T>,
    v: View<'a, T>,
    output: View<'a, T>,
    gradient: View<'a, T>,
    /// (batch, heads, queries, 2)
    statistics: View<'a, T>,
    bias: Bias<'a, T>,
}

impl<T: Number> Backward<'_, T> {
    /// The gradients of q, k and v. However threads share the tiles, a gradient is a sum of the same terms in the same order, so results
    /// do not depend on the number of threads.
    fn run(&self) -> Result<[Tensor; 3]> {
        let sizes = self.rule.sizes;
        let q = (sizes.batch, sizes.heads, sizes.queries, sizes.width);
        let k = (sizes.batch, sizes.key_heads, sizes.keys, sizes.width);
        let v = (sizes.batch, sizes.key_heads, sizes.keys, sizes.value_width);
        let mut dq = vec![T::zero(); q.0 * q.1 * q.2 * q.3];
        let mut dk = vec![T::zero(); k.0 * k.1 * k.2 * k.3];
        let mut dv = vec![T::zero(); v.0 * v.1 * v.2 * v.3];
        // A tile takes five products of matrices. In two passes it takes seven, but all threads have work.
        let is_divided = 7 * sizes.batch * sizes.key_heads < 5 * rayon::current_num_threads();
        let of_queries = sizes.queries * sizes.width;
        let of_heads = |key_head| key_head * sizes.group()..(key_head + 1) * sizes.group();
        let (all_queries, all_keys) = (0..sizes.queries, 0..sizes.keys);
        let (mut areas, mut of_groups) = (Vec::new(), Vec::new());
        match is_divided {
            true => {
                for (head, dq) in dq.chunks_mut(of_queries).enumerate() {
                    let parts = dq.chunks_mut(QUERIES * sizes.width);
                    let parts = (0..).step_by(QUERIES).zip(parts);
                    areas.extend(parts.map(|(query, dq)| Area {
                        heads: head..head + 1,
                        queries: query..sizes.queries.min(query + QUERIES),
                        keys: all_keys.clone(),
                        dq: Some(dq),
                        of_keys: None,
                    }));
                }
            }
            false => of_groups.extend(dq.chunks_mut(sizes.group() * of_queries)),
        }
        let keys_at_once = if is_divided { KEYS } else { sizes.keys };
        let mut of_groups = of_groups.into_iter();
        let of_keys = dk.chunks_mut(sizes.keys * sizes.width);
        let of_keys = of_keys.zip(dv.chunks_mut(sizes.keys * sizes.value_width));
        for (key_head, (dk, dv)) in of_keys.enumerate() {
            let parts = dk.chunks_mut(keys_at_once * sizes.width);
            let parts = parts.zip(dv.chunks_mut(keys_at_once * sizes.value_width));
            let parts = (0..).step_by(keys_at_once).zip(parts);
            areas.extend(parts.map(|(key, (dk, dv))| Area {
                heads: of_heads(key_head),
                queries: all_queries.clone(),
                keys: key..sizes.keys.min(key + keys_at_once),
                dq: of_groups.next(),
                of_keys: Some([dk, dv]),
            }));
        }
        with_scratch(areas, |scratch, _, area| self.area(area, scratch))?;
        Ok([from_vec(dq, q), from_vec(dk, k), from_vec(dv, v)])
    }

    /// Adds what the tiles of an area contribute.
    fn area(&self, mut area: Area<T>, scratch: &mut Scratch<T>) -> Result<()> {
        let sizes = self.rule.sizes;
        for head in area.heads.clone() {
            for key in area.keys.clone().step_by(KEYS) {
                for query in area.queries.clone().step_by(QUERIES) {
                    let at = [head / sizes.heads, head % sizes.heads];
                    let queries = query..area.queries.end.min(query + QUERIES);
                    let keys = key..area.keys.end.min(key + KEYS);
                    let row = (head - area.heads.start) * area.queries.len();
                    let row = row + query - area.queries.start;
                    let dq = area.dq.as_deref_mut();
                    let dq = dq.and_then(|dq| dq.get_mut(row * sizes.width..));
                    let key = key - area.keys.start;
                    let of_keys = area.of_keys.as_mut().map(|[dk, dv]| {
                        let dk = dk.get_mut(key * sizes.width..);
                        let dv = dv.get_mut(key * sizes.value_width..);
                        [dk.unwrap_or_default(), dv.unwrap_or_default()]
                    });
                    self.tile(at, queries, keys, dq, of_keys, scratch)?;
                }
            }
        }
        Ok(())
    }

    /// Adds what a tile of scores contributes: some queries and keys of a sample and head.
    fn tile(
        &self,
        [batch, head]: [usize; 2],
        queries: Range<usize>,
        keys: Range<usize>,
        dq: Option<&mut [T]>,
        of_keys: Option<[&mut [T]; 2]>,
        [weights, gradients, steepness]: &mut Scratch<T>,
    ) -> Result<()> {
        let from = self.rule.seen(queries.start).start;
        let to = self.rule.seen(queries.end - 1).end;
        if to <= keys.start || keys.end <= from {
            return Ok(());
        }
        let sizes = self.rule.sizes;
        let (key_head, rows, columns) = (head / sizes.group(), queries.len(), keys.len());
        let first = [batch, head, queries.start];
        let (q, gradient) = (self.q.rows(first, rows)?, self.gradient.rows(first, rows)?);
        let first = [batch, key_head, keys.start];
        let (k, v) = (self.k.rows(first, columns)?, self.v.rows(first, columns)?);
        let scale = T::from_f64(self.rule.scale);

        weights.resize(rows * columns, T::zero());
        gradients.resize(rows * columns, T::zero());
        let into = MatrixMut::new(weights, [rows, columns], columns)?;
        multiply(into, false, scale, q, k.transposed())?;
        let into = MatrixMut::new(gradients, [rows, columns], columns)?;
        multiply(into, false, T::one(), gradient, v.transposed())?;

        let pairs = weights.chunks_mut(columns);
        let pairs = pairs.zip(gradients.chunks_mut(columns));
        for (query, row) in queries.zip(pairs) {
            let place = [batch, head, query];
            let sum = sum_of_products(self.output.row(place)?, self.gradient.row(place)?);
            self.row(place, keys.start, sum, row, steepness)?;
        }

        let weights = Matrix::new(weights, [rows, columns], [columns, 1])?;
        let gradients = Matrix::new(gradients, [rows, columns], [columns, 1])?;
        if let Some([dk, dv]) = of_keys {
            let into = MatrixMut::new(dv, [columns, sizes.value_width], sizes.value_width)?;
            multiply(into, true, T::one(), weights.transposed(), gradient)?;
            let into = MatrixMut::new(dk, [columns, sizes.width], sizes.width)?;
            multiply(into, true, scale, gradients.transposed(), q)?;
        }
        if let Some(dq) = dq {
            let into = MatrixMut::new(dq, [rows, sizes.width], sizes.width)?;
            multiply(into, true, scale, gradients, k)?;
        }
        Ok(())
    }

    /// Turns the scores of a query from a key on into weights, and gradients of weights into gradients of scores.
    fn row(
        &self,
        place: [usize; 3],
        from: usize,
        sum: T,
        (weights, gradients): (&mut [T], &mut [T]),
        steepness: &mut Vec<T>,
    ) -> Result<()> {
        let [batch, head, query] = place;
        let seen = self.rule.seen_from(query, from);
        let key = from + seen.start;
        let (weights, gradients) = (only(weights, seen.clone()), only(gradients, seen));

        if let Some(most) = self.rule.softcap.map(T::from_f64) {
            cap(weights, most);
            steepness.clear();
            // 1 − tanh², from what the cap gave.
            let tanhs = weights.iter().map(|capped| *capped / most);
            steepness.extend(tanhs.map(|tanh| T::one() - tanh * tanh));
        }
        self.bias.add_to(place, key, weights)?;
        let [most, inverse] = *self.statistics.row(place)? else {
            return Err(misfit());
        };
        exponentials(weights, most);
        let first = self.rule.first_score(batch, head, query) + key as u64;
        let dropout = self.rule.dropout.as_ref();
        let dropout = dropout.map(|dropout| (dropout, T::from_f64(dropout.factor)));
        if let Some((dropout, factor)) = dropout {
            drop_out(gradients, dropout, first, factor);
        }
        for (gradient, weight) in gradients.iter_mut().zip(weights.iter_mut()) {
            *weight *= inverse;
            *gradient = *weight * (*gradient - sum);
        }
        if let Some((dropout, factor)) = dropout {
            drop_out(weights, dropout, first, factor);
        }
        if self.rule.softcap.is_some() {
            for (gradient, slope) in gradients.iter_mut().zip(steepness) {
                *gradient *= *slope;
            }
        }
        Ok(())
    }
}
