use candle_core::{Result, Tensor};
use rayon::prelude::*;

use super::bias::{Bias, Mask};
use super::matrix::{Matrix, MatrixMut, Number, multiply};
use super::rows::{cap, drop_out, exponentials, slopes};
use super::tensor::from_vec;
use super::tile::{Part, Scratch, Tile};
use super::view::{View, misfit};
use crate::nn::attention::rule::Rule;
use crate::nn::kernel::sum_of_products;

/// Size of a tile of scores.
const QUERIES: usize = 128;
const KEYS: usize = 256;

pub struct Backward<'a, T> {
    pub rule: &'a Rule,
    pub q: View<'a, T>,
    pub k: View<'a, T>,
    pub v: View<'a, T>,
    pub output: View<'a, T>,
    pub gradient: View<'a, T>,
    /// (batch, heads, queries, 2)
    pub statistics: View<'a, T>,
    pub mask: Option<Mask<'a, T>>,
}

impl<T: Number> Backward<'_, T> {
    /// The gradients of q, k and v.
    pub fn run(&self) -> Result<[Tensor; 3]> {
        let sizes = self.rule.sizes;
        let q = (sizes.batch, sizes.heads, sizes.queries, sizes.width);
        let k = (sizes.batch, sizes.key_heads, sizes.keys, sizes.width);
        let v = (sizes.batch, sizes.key_heads, sizes.keys, sizes.value_width);
        let mut dq = vec![T::zero(); q.0 * q.1 * q.2 * q.3];
        let mut dk = vec![T::zero(); k.0 * k.1 * k.2 * k.3];
        let mut dv = vec![T::zero(); v.0 * v.1 * v.2 * v.3];
        (dq.par_chunks_mut(sizes.group() * q.2 * q.3))
            .zip(dk.par_chunks_mut(k.2 * k.3))
            .zip(dv.par_chunks_mut(v.2 * v.3))
            .enumerate()
            .try_for_each_init(Scratch::new, |scratch, (index, ((dq, dk), dv))| {
                let (batch, key_head) = (index / sizes.key_heads, index % sizes.key_heads);
                self.part([batch, key_head], Part { dq, dk, dv }, scratch)
            })?;
        Ok([from_vec(dq, q), from_vec(dk, k), from_vec(dv, v)])
    }

    fn part(
        &self,
        [batch, key_head]: [usize; 2],
        part: Part<T>,
        scratch: &mut Scratch<T>,
    ) -> Result<()> {
        let sizes = self.rule.sizes;
        let of_heads = part.dq.chunks_mut(sizes.queries * sizes.width);
        for (head, dq) in (key_head * sizes.group()..).zip(of_heads) {
            scratch.sums.clear();
            for query in 0..sizes.queries {
                let output = self.output.row(batch, head, query)?;
                let gradient = self.gradient.row(batch, head, query)?;
                scratch.sums.push(sum_of_products(output, gradient));
            }
            let of_keys = part.dk.chunks_mut(KEYS * sizes.width);
            let of_keys = of_keys.zip(part.dv.chunks_mut(KEYS * sizes.value_width));
            for (key, (dk, dv)) in (0..).step_by(KEYS).zip(of_keys) {
                for (query, dq) in (0..)
                    .step_by(QUERIES)
                    .zip(dq.chunks_mut(QUERIES * sizes.width))
                {
                    let at = Tile {
                        batch,
                        head,
                        query,
                        queries: dq.len() / sizes.width,
                        key,
                        keys: dk.len() / sizes.width,
                    };
                    if self.rule.seen(at.query + at.queries - 1) > key {
                        self.tile(
                            &at,
                            Part {
                                dq,
                                dk: &mut *dk,
                                dv: &mut *dv,
                            },
                            scratch,
                        )?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds what a tile of scores contributes.
    fn tile(&self, at: &Tile, part: Part<T>, scratch: &mut Scratch<T>) -> Result<()> {
        let (sizes, shape) = (self.rule.sizes, [at.queries, at.keys]);
        let key_head = at.head / sizes.group();
        let q = self.q.rows(at.batch, at.head, at.query, at.queries)?;
        let gradient = self
            .gradient
            .rows(at.batch, at.head, at.query, at.queries)?;
        let k = self.k.rows(at.batch, key_head, at.key, at.keys)?;
        let v = self.v.rows(at.batch, key_head, at.key, at.keys)?;
        let scale = T::from_f64(self.rule.scale);

        scratch.weights.resize(at.queries * at.keys, T::zero());
        scratch.gradients.resize(at.queries * at.keys, T::zero());
        let into = MatrixMut::new(&mut scratch.weights, shape, at.keys)?;
        multiply(into, false, scale, q, k.transposed())?;
        let into = MatrixMut::new(&mut scratch.gradients, shape, at.keys)?;
        multiply(into, false, T::one(), gradient, v.transposed())?;

        let sums = scratch.sums.get(at.query..).unwrap_or_default();
        let rows = scratch
            .weights
            .chunks_mut(at.keys)
            .zip(scratch.gradients.chunks_mut(at.keys));
        for (query, ((weights, gradients), sum)) in (at.query..).zip(rows.zip(sums)) {
            self.row(at, query, *sum, (weights, gradients), &mut scratch.slopes)?;
        }

        let weights = Matrix::new(&scratch.weights, shape, [at.keys, 1])?;
        let gradients = Matrix::new(&scratch.gradients, shape, [at.keys, 1])?;
        let into = MatrixMut::new(part.dv, [at.keys, sizes.value_width], sizes.value_width)?;
        multiply(into, true, T::one(), weights.transposed(), gradient)?;
        let into = MatrixMut::new(part.dk, [at.keys, sizes.width], sizes.width)?;
        multiply(into, true, scale, gradients.transposed(), q)?;
        let into = MatrixMut::new(part.dq, [at.queries, sizes.width], sizes.width)?;
        multiply(into, true, scale, gradients, k)
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
        let seen = self.rule.seen(query).saturating_sub(at.key).min(at.keys);
        let (weights, hidden) = weights.split_at_mut(seen);
        hidden.fill(T::zero());
        let (gradients, hidden) = gradients.split_at_mut(seen);
        hidden.fill(T::zero());

        if let Some(most) = self.rule.softcap.map(T::from_f64) {
            cap(weights, most);
            slopes(weights, most, steepness);
        }
        let bias = match self.mask {
            Some(mask) => mask.bias(at.batch, at.head, query, at.key, seen)?,
            None => Bias::None,
        };
        bias.add_to(weights);
        let statistics = self.statistics.row(at.batch, at.head, query)?;
        let [most, inverse] = *statistics else {
            return Err(misfit());
        };
        exponentials(weights, most);
        let first = self.rule.first_score(at.batch, at.head, query) + at.key as u64;
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
