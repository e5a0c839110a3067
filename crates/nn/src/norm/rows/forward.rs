use candle_core::Tensor;

use super::Rows;
use crate::kernel::{Extent, Kernel, Number, Plan};

/// y = w · (x − mean) / deviation + b for each row, from x, w and b.
pub struct RowsForward(pub Rows);

impl Kernel<3, 1> for RowsForward {
    const NAME: &'static str = "rows_forward";

    fn plan(&self, [xs, _, _]: [&Tensor; 3]) -> Plan {
        let width = self.0.width;
        Plan::of_rows(xs, width, [Extent::Row(width), Extent::All, Extent::All])
    }

    fn cpu<S: Number>(&self, _: usize, [xs, weight, bias]: [&[S]; 3], [ys]: [&mut [S]; 1]) {
        let width = self.0.width;
        for (y, x) in ys.chunks_mut(width).zip(xs.chunks(width)) {
            self.0.divide(x, y);
            for ((y, w), b) in y.iter_mut().zip(weight).zip(bias) {
                *y = *y * *w + *b;
            }
        }
    }
}
