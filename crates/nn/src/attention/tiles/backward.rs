//! The backward pass of attention on the CPU: scores are computed again, in tiles of 128 queries and 256 keys. Each gradient is a sum of the
//! same terms in the same order, however threads share the tiles.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::rows::{Bias, cap, drop_out, exponentials, only, slopes};
use super::view::{View, from_vec, misfit};
use crate::attention::rule::Rule;
use crate::kernel::matrix::{Matrix, MatrixMut, Number, multiply};
use crate::kernel::{sum_of_products, with_scratch};

/// Size of a tile of scores.
const QUERIES: usize = 128;
const KEYS: usize = 256;

/// What a tile is computed in: weights, their gradients, and the derivatives of a cap.
type Scratch<T> = [Vec<T>; 3];

/// Some queries and keys of a head.
struct Tile {
    batch: usize,
    head: usize,
    query: usize,
    queries: usize,
    key: usize,
    keys: usize,
}

/// What one thread computes: tiles of some queries and keys of heads that share a key head, counted over all samples.
struct Area<'a, T> {
    heads: Range<usize>,
    queries: Range<usize>,
    keys: Range<usize>,
    /// The gradients that its tiles add to: of the queries, and of keys and values.
    dq: Option<&'a mut [T]>,
    of_keys: Option<[&'a mut [T]; 2]>,
}

pub struct Backward<'a, T> {
    pub rule: &'a Rule,
    pub q: View<'a, T>,
    pub k: View<'a, T>,
    pub v: View<'a, T>,
    pub output: View<'a, T>,
    pub gradient: View<'a, T>,
    /// (batch, heads, queries, 2)
    pub statistics: View<'a, T>,
    pub bias: &'a Bias<'a, T>,
}

impl<T: Number> Backward<'_, T> {
    /// The gradients of q, k and v. However threads share the tiles, a gradient is a sum of the same terms in the same order, so results
    /// do not depend on the number of threads.
    pub fn run(&self) -> Result<[Tensor; 3]> {
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
                    let at = Tile {
                        batch: head / sizes.heads,
                        head: head % sizes.heads,
                        query,
                        queries: QUERIES.min(area.queries.end - query),
                        key,
                        keys: KEYS.min(area.keys.end - key),
                    };
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
                    self.tile(&at, dq, of_keys, scratch)?;
                }
            }
        }
        Ok(())
    }

    /// Adds what a tile of scores contributes.
    fn tile(
        &self,
        at: &Tile,
        dq: Option<&mut [T]>,
        of_keys: Option<[&mut [T]; 2]>,
        [weights, gradients, steepness]: &mut Scratch<T>,
    ) -> Result<()> {
        let from = self.rule.seen(at.query).start;
        let to = self.rule.seen(at.query + at.queries - 1).end;
        if to <= at.key || at.key + at.keys <= from {
            return Ok(());
        }
        let (sizes, shape) = (self.rule.sizes, [at.queries, at.keys]);
        let key_head = at.head / sizes.group();
        let q = self.q.rows(at.batch, at.head, at.query, at.queries)?;
        let gradient = self
            .gradient
            .rows(at.batch, at.head, at.query, at.queries)?;
        let k = self.k.rows(at.batch, key_head, at.key, at.keys)?;
        let v = self.v.rows(at.batch, key_head, at.key, at.keys)?;
        let scale = T::from_f64(self.rule.scale);

        weights.resize(at.queries * at.keys, T::zero());
        gradients.resize(at.queries * at.keys, T::zero());
        let into = MatrixMut::new(weights, shape, at.keys)?;
        multiply(into, false, scale, q, k.transposed())?;
        let into = MatrixMut::new(gradients, shape, at.keys)?;
        multiply(into, false, T::one(), gradient, v.transposed())?;

        let rows = weights.chunks_mut(at.keys);
        let rows = rows.zip(gradients.chunks_mut(at.keys));
        for (query, row) in (at.query..).zip(rows) {
            let output = self.output.row(at.batch, at.head, query)?;
            let sum = sum_of_products(output, self.gradient.row(at.batch, at.head, query)?);
            self.row(at, query, sum, row, steepness)?;
        }

        let weights = Matrix::new(weights, shape, [at.keys, 1])?;
        let gradients = Matrix::new(gradients, shape, [at.keys, 1])?;
        if let Some([dk, dv]) = of_keys {
            let into = MatrixMut::new(dv, [at.keys, sizes.value_width], sizes.value_width)?;
            multiply(into, true, T::one(), weights.transposed(), gradient)?;
            let into = MatrixMut::new(dk, [at.keys, sizes.width], sizes.width)?;
            multiply(into, true, scale, gradients.transposed(), q)?;
        }
        if let Some(dq) = dq {
            let into = MatrixMut::new(dq, [at.queries, sizes.width], sizes.width)?;
            multiply(into, true, scale, gradients, k)?;
        }
        Ok(())
    }

    /// Turns scores into weights, and gradients of weights into gradients of scores.
    fn row(
        &self,
        at: &Tile,
        query: usize,
        sum: T,
        (weights, gradients): (&mut [T], &mut [T]),
        steepness: &mut Vec<T>,
    ) -> Result<()> {
        let seen = self.rule.seen_from(query, at.key);
        let key = at.key + seen.start;
        let (weights, gradients) = (only(weights, seen.clone()), only(gradients, seen));

        if let Some(most) = self.rule.softcap.map(T::from_f64) {
            cap(weights, most);
            slopes(weights, most, steepness);
        }
        let place = [at.batch, at.head, query];
        self.bias.add_to(place, key, weights)?;
        let statistics = self.statistics.row(at.batch, at.head, query)?;
        let [most, inverse] = *statistics else {
            return Err(misfit());
        };
        exponentials(weights, most);
        let first = self.rule.first_score(at.batch, at.head, query) + key as u64;
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
