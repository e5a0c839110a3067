use candle_core::{Result, Shape, Tensor};

use super::{Rows, row};
use crate::nn::kernel::{Element, Kernel, by_rows};
use crate::nn::norm::statistics_type;

/// y = w · (x − mean) / deviation + b for each row, from x, w and b.
pub struct RowsForward(pub Rows);

impl Kernel<3, 1> for RowsForward {
    const NAME: &'static str = "rows_forward";

    type Output<T: Element> = T;

    fn shapes(&self, [xs, _, _]: [&Tensor; 3]) -> Result<[Shape; 1]> {
        Ok([xs.shape().clone()])
    }

    fn cpu<T: Element>(&self, inputs: [&[T]; 3], [ys]: [&mut [T]; 1]) -> Result<()> {
        let [xs, weight, bias] = inputs;
        let width = self.0.width;
        by_rows(ys, width, |first, ys| {
            let mut normal = row::<T>(width);
            let rows = xs.chunks(width).skip(first);
            for (y, x) in ys.chunks_mut(width).zip(rows) {
                self.0.divide(x, &mut normal);
                for (((y, n), w), b) in y.iter_mut().zip(&normal).zip(weight).zip(bias) {
                    *y = T::narrow(*n * w.widen() + b.widen());
                }
            }
        });
        Ok(())
    }

    fn composed(&self, [xs, weight, bias]: [&Tensor; 3]) -> Result<[Tensor; 1]> {
        let (normal, _) = self.0.divided(&xs.to_dtype(statistics_type(xs.dtype()))?)?;
        let ys = normal.to_dtype(xs.dtype())?.broadcast_mul(weight)?;
        Ok([ys.broadcast_add(bias)?])
    }
}
