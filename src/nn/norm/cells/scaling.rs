use candle_core::{Result, Shape, Tensor};

use super::Cells;
use crate::nn::kernel::{Element, Kernel};

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
        let values: Vec<_> = means.into_iter().zip(scales).zip(shifts).collect();
        let scaled = |((mean, scale), shift): &((T::Sum, T::Sum), T::Sum), x, _| {
            (x - *mean) * *scale + *shift
        };
        self.cells.map(ys, [xs, xs], &values, scaled);
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
