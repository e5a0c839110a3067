use candle_core::Tensor;

use super::Rows;
use crate::kernel::{Extent, Kernel, Number, Plan, sum_of, sum_of_products};
use crate::norm::rows_of_part;

/// The gradients of x, w and b from x, w and dy. With n the normalized row and g = w · dy:
/// dx = (g − mean(g) − n · mean(g · n)) / deviation, dw = Σ n · dy and db = Σ dy over rows.
pub struct RowsBackward {
    pub rows: Rows,
    /// Whether to compute dw and db, which are empty otherwise.
    pub with_sums: bool,
}

impl RowsBackward {
    /// Number of elements of dw and of db.
    fn sums(&self) -> usize {
        match self.with_sums {
            true => self.rows.width,
            false => 0,
        }
    }
}

impl Kernel<3, 3> for RowsBackward {
    const NAME: &'static str = "rows_backward";

    fn plan(&self, [xs, _, _]: [&Tensor; 3]) -> Plan {
        let (width, sums) = (self.rows.width, self.sums());
        let mut plan = Plan::of_rows(
            xs,
            width,
            [Extent::Row(width), Extent::All, Extent::Row(width)],
        );
        plan.at_once = rows_of_part(plan.rows, width);
        plan.outputs
            .extend([(); 2].map(|()| (sums.into(), Extent::Block(sums))));
        plan
    }

    fn cpu<S: Number>(&self, _: usize, inputs: [&[S]; 3], outputs: [&mut [S]; 3]) {
        let ([xs, weight, dys], [dxs, dw, db]) = (inputs, outputs);
        let width = self.rows.width;
        let len = S::of(width as f64);
        let (mut normal, mut weighted) = (vec![S::zero(); width], vec![S::zero(); width]);
        let rows = xs.chunks(width).zip(dys.chunks(width));
        for (dx, (x, dy)) in dxs.chunks_mut(width).zip(rows) {
            let scale = self.rows.divide(x, &mut normal);
            for ((g, dy), w) in weighted.iter_mut().zip(dy).zip(weight) {
                *g = *dy * *w;
            }
            // Without sums these are empty, and so is the loop.
            for (((dw, db), n), dy) in dw.iter_mut().zip(db.iter_mut()).zip(&normal).zip(dy) {
                *dw += *n * *dy;
                *db += *dy;
            }
            let along = sum_of_products(&weighted, &normal) / len;
            let mean = match self.rows.center {
                true => sum_of(&weighted, &weighted, |g, _| g) / len,
                false => S::zero(),
            };
            for ((dx, g), n) in dx.iter_mut().zip(&weighted).zip(&normal) {
                *dx = scale * (*g - mean - *n * along);
            }
        }
    }
}
