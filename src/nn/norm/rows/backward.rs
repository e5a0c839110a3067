use candle_core::{D, Result, Shape, Tensor, WithDType};
use num_traits::Zero;
use rayon::prelude::*;

use super::{Rows, row};
use crate::nn::kernel::{Element, Kernel, sum_of, sum_of_products};
use crate::nn::norm::{rows_of_part, statistics_type};

/// The gradients of x, w and b from x, w and dy. With n the normalized row and g = w · dy:
/// dx = (g − mean(g) − n · mean(g · n)) / deviation, dw = Σ n · dy and db = Σ dy over rows.
pub struct RowsBackward {
    pub rows: Rows,
    /// Whether to compute dw and db, which are empty otherwise.
    pub with_sums: bool,
}

impl RowsBackward {
    /// Number of elements of dw and of db.
    pub fn sums(&self) -> usize {
        match self.with_sums {
            true => self.rows.width,
            false => 0,
        }
    }

    /// Writes dx for some rows and returns their part of dw and db.
    fn some_rows<'a, T: Element>(
        &self,
        rows: impl Iterator<Item = (&'a [T], &'a [T])>,
        weight: &[T::Sum],
        dxs: &mut [T],
    ) -> [Vec<T::Sum>; 2] {
        let width = self.rows.width;
        let len = T::Sum::from_f64(width as f64);
        let (mut normal, mut weighted) = (row::<T>(width), row::<T>(width));
        let (mut dw, mut db) = (row::<T>(self.sums()), row::<T>(self.sums()));
        for (dx, (x, dy)) in dxs.chunks_mut(width).zip(rows) {
            let scale = self.rows.divide(x, &mut normal);
            for ((g, dy), w) in weighted.iter_mut().zip(dy).zip(weight) {
                *g = dy.widen() * *w;
            }
            // Without sums these are empty, and so is the loop.
            for (((dw, db), n), dy) in dw.iter_mut().zip(&mut db).zip(&normal).zip(dy) {
                *dw += *n * dy.widen();
                *db += dy.widen();
            }
            let along = sum_of_products(&weighted, &normal) / len;
            let mean = match self.rows.center {
                true => sum_of(&weighted, &weighted, |g, _| g) / len,
                false => T::Sum::zero(),
            };
            for ((dx, g), n) in dx.iter_mut().zip(&weighted).zip(&normal) {
                *dx = T::narrow(scale * (*g - mean - *n * along));
            }
        }
        [dw, db]
    }
}

impl Kernel<3, 3> for RowsBackward {
    const NAME: &'static str = "rows_backward";

    type Output<T: Element> = T;

    fn shapes(&self, [xs, _, _]: [&Tensor; 3]) -> Result<[Shape; 3]> {
        let sums = Shape::from(self.sums());
        Ok([xs.shape().clone(), sums.clone(), sums])
    }

    fn cpu<T: Element>(&self, inputs: [&[T]; 3], outputs: [&mut [T]; 3]) -> Result<()> {
        let ([xs, weight, dys], [dxs, dweight, dbias]) = (inputs, outputs);
        let width = self.rows.width.max(1);
        let rows = rows_of_part(xs.len() / width, width);
        let weight: Vec<T::Sum> = weight.iter().map(|w| w.widen()).collect();
        let groups = dxs.par_chunks_mut(rows * width).enumerate();
        let groups = groups.map(|(group, dxs)| {
            let pairs = xs.chunks(width).zip(dys.chunks(width));
            self.some_rows(pairs.skip(group * rows), &weight, dxs)
        });
        let groups: Vec<_> = groups.collect();
        let (mut dw, mut db) = (row::<T>(self.sums()), row::<T>(self.sums()));
        for [of_weight, of_bias] in groups {
            dw.iter_mut()
                .zip(of_weight)
                .for_each(|(sum, part)| *sum += part);
            db.iter_mut()
                .zip(of_bias)
                .for_each(|(sum, part)| *sum += part);
        }
        for (out, sum) in dweight.iter_mut().zip(dw).chain(dbias.iter_mut().zip(db)) {
            *out = T::narrow(sum);
        }
        Ok(())
    }

    fn composed(&self, [xs, weight, dys]: [&Tensor; 3]) -> Result<[Tensor; 3]> {
        let dtype = xs.dtype();
        let wide = statistics_type(dtype);
        let dys = dys.to_dtype(wide)?;
        let (normal, scale) = self.rows.divided(&xs.to_dtype(wide)?)?;
        let weighted = dys.broadcast_mul(&weight.to_dtype(wide)?)?;
        let along = (&weighted * &normal)?.mean_keepdim(D::Minus1)?;
        let mut dxs = (&weighted - normal.broadcast_mul(&along)?)?;
        if self.rows.center {
            dxs = dxs.broadcast_sub(&weighted.mean_keepdim(D::Minus1)?)?;
        }
        let sum = |values: Tensor| {
            let rows = values.reshape(((), self.rows.width))?;
            rows.sum(0)?.narrow(0, 0, self.sums())?.to_dtype(dtype)
        };
        let dxs = dxs.broadcast_mul(&scale)?.to_dtype(dtype)?;
        Ok([dxs, sum((&dys * normal)?)?, sum(dys)?])
    }
}
