use candle_core::{Result, Shape, Tensor};

use super::Cells;
use crate::nn::kernel::{Element, Kernel, by_rows};

/// y = (x − mean) · scale + shift, with one value of each for each cell, in f64 for f64 and f32 for all others.
pub struct CellScaling {
    pub cells: Cells,
    pub mean: Tensor,
    pub scale: Tensor,
    pub shift: Tensor,
}

impl Kernel<1, 1> for CellScaling {
    const NAME: &'static str = "cell_scaling";

    type Output<T: Element> = T;

    fn shapes(&self, [xs]: [&Tensor; 1]) -> Result<[Shape; 1]> {
        Ok([xs.shape().clone()])
    }

    fn cpu<T: Element>(&self, [xs]: [&[T]; 1], [ys]: [&mut [T]; 1]) -> Result<()> {
        let means: Vec<T::Sum> = self.mean.to_vec1()?;
        let scales: Vec<T::Sum> = self.scale.to_vec1()?;
        let shifts: Vec<T::Sum> = self.shift.to_vec1()?;
        let inner = self.cells.inner;
        by_rows(ys, inner, |first, ys| {
            let cells = means.iter().zip(&scales).zip(&shifts).cycle();
            let cells = cells.skip(first % self.cells.cells);
            let parts = ys.chunks_mut(inner).zip(xs.chunks(inner).skip(first));
            for ((y, x), ((mean, scale), shift)) in parts.zip(cells) {
                for (y, x) in y.iter_mut().zip(x) {
                    *y = T::narrow((x.widen() - *mean) * *scale + *shift);
                }
            }
        });
        Ok(())
    }

    fn composed(&self, [xs]: [&Tensor; 1]) -> Result<[Tensor; 1]> {
        let (values, mean) = self.cells.broadcast(xs, &self.mean)?;
        let (_, scale) = self.cells.broadcast(xs, &self.scale)?;
        let (_, shift) = self.cells.broadcast(xs, &self.shift)?;
        let ys = values.broadcast_sub(&mean)?.broadcast_mul(&scale)?;
        let ys = ys.broadcast_add(&shift)?.to_dtype(xs.dtype())?;
        Ok([ys.reshape(xs.shape())?])
    }
}
