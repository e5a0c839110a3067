use candle_core::{Result, Tensor};
use num_traits::Zero;
use rayon::prelude::*;

use crate::nn::kernel::{Element, by_rows, sum_of};
use crate::nn::norm::{rows_of_part, statistics_type};

/// A tensor of `outer` × `cells` × `inner` elements. A cell is what has one index in the middle.
#[derive(Debug, Clone, Copy)]
pub struct Cells {
    pub outer: usize,
    pub cells: usize,
    pub inner: usize,
}

impl Cells {
    /// Number of elements of a cell.
    pub fn len(self) -> usize {
        self.outer * self.inner
    }

    /// Σ f(mean, a, b) over the elements of each cell, with the mean of that cell.
    pub fn sums<T: Element>(
        self,
        [a, b]: [&[T]; 2],
        means: &[T::Sum],
        f: impl Fn(T::Sum, T::Sum, T::Sum) -> T::Sum + Sync,
    ) -> Vec<T::Sum> {
        if self.inner == 1 {
            return self.sums_of_columns([a, b], means, f);
        }
        let of_cell = |(cell, mean): (usize, &T::Sum)| {
            let parts = self.parts(a, cell).zip(self.parts(b, cell));
            parts
                .map(|(a, b)| sum_of(a, b, |a, b| f(*mean, a, b)))
                .sum()
        };
        means.par_iter().enumerate().map(of_cell).collect()
    }

    /// [`sums`](Self::sums) of elements that lie side by side with those of the other cells.
    fn sums_of_columns<T: Element>(
        self,
        [a, b]: [&[T]; 2],
        means: &[T::Sum],
        f: impl Fn(T::Sum, T::Sum, T::Sum) -> T::Sum + Sync,
    ) -> Vec<T::Sum> {
        let width = self.cells.max(1);
        let rows = rows_of_part(self.outer, width);
        let groups = a.par_chunks(rows * width).zip(b.par_chunks(rows * width));
        let groups = groups.map(|(a, b)| {
            let mut sums = vec![T::Sum::zero(); width];
            for (a, b) in a.chunks(width).zip(b.chunks(width)) {
                for (((sum, mean), a), b) in sums.iter_mut().zip(means).zip(a).zip(b) {
                    *sum += f(*mean, a.widen(), b.widen());
                }
            }
            sums
        });
        let groups: Vec<_> = groups.collect();
        let mut sums = vec![T::Sum::zero(); width];
        for group in groups {
            sums.iter_mut()
                .zip(group)
                .for_each(|(sum, part)| *sum += part);
        }
        sums
    }

    /// Writes f(values, a, b) for each element, with the values of its cell.
    pub fn map<T: Element, V: Sync>(
        self,
        out: &mut [T],
        [a, b]: [&[T]; 2],
        of_cells: &[V],
        f: impl Fn(&V, T::Sum, T::Sum) -> T::Sum + Sync + Send,
    ) {
        if self.inner == 1 {
            return by_rows(out, self.cells, |first, out| {
                let rows = a.chunks(self.cells).zip(b.chunks(self.cells)).skip(first);
                for (out, (a, b)) in out.chunks_mut(self.cells).zip(rows) {
                    for (((out, a), b), values) in out.iter_mut().zip(a).zip(b).zip(of_cells) {
                        *out = T::narrow(f(values, a.widen(), b.widen()));
                    }
                }
            });
        }
        by_rows(out, self.inner, |first, out| {
            let of_cells = of_cells.iter().cycle().skip(first % self.cells);
            let parts = a.chunks(self.inner).zip(b.chunks(self.inner)).skip(first);
            for ((out, (a, b)), values) in out.chunks_mut(self.inner).zip(parts).zip(of_cells) {
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    *out = T::narrow(f(values, a.widen(), b.widen()));
                }
            }
        });
    }

    /// The parts of a cell, each contiguous.
    fn parts<T>(self, values: &[T], cell: usize) -> impl Iterator<Item = &[T]> {
        let parts = values.chunks(self.inner.max(1));
        parts.skip(cell).step_by(self.cells.max(1))
    }

    /// The tensor, and one value for each cell, in shapes that broadcast.
    pub fn broadcast(self, values: &Tensor, of_cells: &Tensor) -> Result<(Tensor, Tensor)> {
        let values = values.to_dtype(statistics_type(values.dtype()))?;
        let values = values.reshape((self.outer, self.cells, self.inner))?;
        Ok((values, of_cells.reshape((1, self.cells, 1))?))
    }
}
