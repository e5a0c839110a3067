//! Sums over cells and what is computed with them.

use candle_core::{Shape, Tensor};

use super::rows_of_part;
use crate::kernel::{Extent, Kernel, Number, Plan, rows_at_once, sum_of};

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

    /// Number of elements of a row: one of each cell where these lie side by side, else `inner` of one cell.
    fn width(self) -> usize {
        match self.inner {
            1 => self.cells,
            inner => inner,
        }
    }

    fn plan(self, xs: &Tensor, inputs: &[Extent]) -> Plan {
        Plan::of_rows(xs, self.width(), inputs)
    }

    /// Writes f(values, x, dy) for each element, with the values of its cell. `first` is the number of the first row.
    fn map<S: Number, const N: usize>(
        self,
        first: usize,
        values: [&[S]; N],
        [xs, dys]: [&[S]; 2],
        out: &mut [S],
        f: impl Fn([S; N], S, S) -> S,
    ) {
        let width = self.width().max(1);
        let of_cell = |cell: usize| values.map(|values| *values.get(cell).unwrap_or(&S::zero()));
        let rows = out
            .chunks_mut(width)
            .zip(xs.chunks(width).zip(dys.chunks(width)));
        if self.inner == 1 {
            let of_cells: Vec<_> = (0..self.cells).map(of_cell).collect();
            for (out, (x, dy)) in rows {
                for (((out, x), dy), values) in out.iter_mut().zip(x).zip(dy).zip(&of_cells) {
                    *out = f(*values, *x, *dy);
                }
            }
            return;
        }
        for (row, (out, (x, dy))) in (first..).zip(rows) {
            let values = of_cell(row % self.cells);
            for ((out, x), dy) in out.iter_mut().zip(x).zip(dy) {
                *out = f(values, *x, *dy);
            }
        }
    }

    /// Adds up f(x − mean, dy), and that times x − mean, for each cell. `first` is the number of the first row.
    fn sums<S: Number>(
        self,
        first: usize,
        [means, xs, dys]: [&[S]; 3],
        [sums, products]: [&mut [S]; 2],
        f: impl Fn(S, S) -> S,
    ) {
        let width = self.width().max(1);
        let rows = xs.chunks(width).zip(dys.chunks(width));
        if self.inner == 1 {
            for (x, dy) in rows {
                let sums = sums.iter_mut().zip(products.iter_mut()).zip(means);
                for ((((sum, product), mean), x), dy) in sums.zip(x).zip(dy) {
                    let deviation = *x - *mean;
                    let dy = f(deviation, *dy);
                    *sum += dy;
                    *product += deviation * dy;
                }
            }
            return;
        }
        let sums = sums.iter_mut().zip(products).zip(first..);
        for (((sum, product), row), (x, dy)) in sums.zip(rows) {
            let mean = *means.get(row % self.cells).unwrap_or(&S::zero());
            *sum = sum_of(x, dy, |x, dy| f(x - mean, dy));
            *product = sum_of(x, dy, |x, dy| (x - mean) * f(x - mean, dy));
        }
    }
}

/// Σ dy and Σ dy · (x − mean) for each cell, from the means, x and dy, or with x − mean in the place of dy.
pub struct CellSums {
    pub cells: Cells,
    pub of_deviations: bool,
}

impl Kernel<3, 2> for CellSums {
    const NAME: &'static str = "cell_sums";

    const WIDE: usize = 1;

    fn plan(&self, [_, xs, _]: [&Tensor; 3]) -> Plan {
        let (cells, width) = (self.cells, self.cells.width());
        let rows = xs.elem_count() / width.max(1);
        let (at_once, of_sums) = match cells.inner {
            1 => (rows_of_part(rows, width), Extent::Block(width)),
            _ => (rows_at_once(width), Extent::Row(1)),
        };
        Plan {
            rows,
            at_once,
            inputs: vec![Extent::All, Extent::Row(width), Extent::Row(width)],
            outputs: vec![(Shape::from(cells.cells), of_sums); 2],
            is_wide: true,
        }
    }

    fn cpu<S: Number>(&self, first: usize, inputs: [&[S]; 3], outputs: [&mut [S]; 2]) {
        // Decided here, because a branch for each element keeps the loops from being vectorized.
        match self.of_deviations {
            true => self
                .cells
                .sums(first, inputs, outputs, |deviation, _| deviation),
            false => self.cells.sums(first, inputs, outputs, |_, dy| dy),
        }
    }
}

/// y = (x − mean) · scale + shift, from the means, scales and shifts of the cells and x.
pub struct CellScaling(pub Cells);

impl Kernel<4, 1> for CellScaling {
    const NAME: &'static str = "cell_scaling";

    const WIDE: usize = 3;

    fn plan(&self, [.., xs]: [&Tensor; 4]) -> Plan {
        let row = Extent::Row(self.0.width());
        self.0
            .plan(xs, &[Extent::All, Extent::All, Extent::All, row])
    }

    fn cpu<S: Number>(&self, first: usize, inputs: [&[S]; 4], [ys]: [&mut [S]; 1]) {
        let [mean, scale, shift, xs] = inputs;
        let values = [mean, scale, shift];
        self.0
            .map(first, values, [xs, xs], ys, |[mean, scale, shift], x, _| {
                (x - mean) * scale + shift
            });
    }
}

/// dx = dy · scale − (x − mean) · slope − shift, from the means, scales, slopes and shifts of the cells, x and dy.
pub struct CellGradient(pub Cells);

impl Kernel<6, 1> for CellGradient {
    const NAME: &'static str = "cell_gradient";

    const WIDE: usize = 4;

    fn plan(&self, [.., xs]: [&Tensor; 6]) -> Plan {
        let (all, row) = (Extent::All, Extent::Row(self.0.width()));
        self.0.plan(xs, &[all, all, all, all, row, row])
    }

    fn cpu<S: Number>(&self, first: usize, inputs: [&[S]; 6], [dxs]: [&mut [S]; 1]) {
        let [mean, scale, slope, shift, xs, dys] = inputs;
        let values = [mean, scale, slope, shift];
        self.0.map(
            first,
            values,
            [xs, dys],
            dxs,
            |[mean, scale, slope, shift], x, dy| dy * scale - (x - mean) * slope - shift,
        );
    }
}
