use candle_core::Result;

use super::bias::Bias;
use super::rows::{cap, drop_out, exponentials, only, slopes};
use super::tile::{Part, Scratch, Tile};
use super::view::{View, misfit};
use crate::attention::rule::Rule;
use crate::kernel::matrix::{Matrix, MatrixMut, Number, multiply};
use crate::kernel::sum_of_products;

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
    /// Adds what a tile of scores contributes.
    pub fn tile(&self, at: &Tile, part: Part<T>, scratch: &mut Scratch<T>) -> Result<()> {
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

        scratch.weights.resize(at.queries * at.keys, T::zero());
        scratch.gradients.resize(at.queries * at.keys, T::zero());
        let into = MatrixMut::new(&mut scratch.weights, shape, at.keys)?;
        multiply(into, false, scale, q, k.transposed())?;
        let into = MatrixMut::new(&mut scratch.gradients, shape, at.keys)?;
        multiply(into, false, T::one(), gradient, v.transposed())?;

        let rows = scratch.weights.chunks_mut(at.keys);
        let rows = rows.zip(scratch.gradients.chunks_mut(at.keys));
        for (query, row) in (at.query..).zip(rows) {
            let output = self.output.row(at.batch, at.head, query)?;
            let sum = sum_of_products(output, self.gradient.row(at.batch, at.head, query)?);
            self.row(at, query, sum, row, &mut scratch.slopes)?;
        }

        let weights = Matrix::new(&scratch.weights, shape, [at.keys, 1])?;
        let gradients = Matrix::new(&scratch.gradients, shape, [at.keys, 1])?;
        if let Some([dk, dv]) = part.of_keys {
            let into = MatrixMut::new(dv, [at.keys, sizes.value_width], sizes.value_width)?;
            multiply(into, true, T::one(), weights.transposed(), gradient)?;
            let into = MatrixMut::new(dk, [at.keys, sizes.width], sizes.width)?;
            multiply(into, true, scale, gradients.transposed(), q)?;
        }
        if let Some(dq) = part.dq {
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
