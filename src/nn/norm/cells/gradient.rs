use candle_core::{Result, Shape, Tensor};

use super::Cells;
use crate::nn::kernel::{Element, Kernel};

/// dx = dy · scale − (x − mean) · slope − shift, from x and dy, with one value of each for each cell, in f64 for f64 and f32 for all
/// others.
pub struct CellGradient {
    pub cells: Cells,
    pub mean: Tensor,
    pub scale: Tensor,
    pub slope: Tensor,
    pub shift: Tensor,
}

impl Kernel<2, 1> for CellGradient {
    const NAME: &'static str = "cell_gradient";

    type Output<T: Element> = T;

    fn shapes(&self, [xs, _]: [&Tensor; 2]) -> Result<[Shape; 1]> {
        Ok([xs.shape().clone()])
    }

    fn cpu<T: Element>(&self, inputs: [&[T]; 2], [dxs]: [&mut [T]; 1]) -> Result<()> {
        let means: Vec<T::Sum> = self.mean.to_vec1()?;
        let scales: Vec<T::Sum> = self.scale.to_vec1()?;
        let slopes: Vec<T::Sum> = self.slope.to_vec1()?;
        let shifts: Vec<T::Sum> = self.shift.to_vec1()?;
        let lines = slopes.into_iter().zip(shifts);
        let values: Vec<_> = means.into_iter().zip(scales).zip(lines).collect();
        self.cells.map(
            dxs,
            inputs,
            &values,
            |((mean, scale), (slope, shift)), x, dy| dy * *scale - (x - *mean) * *slope - *shift,
        );
        Ok(())
    }

    fn composed(&self, [xs, dys]: [&Tensor; 2]) -> Result<[Tensor; 1]> {
        let (values, mean) = self.cells.broadcast(xs, &self.mean)?;
        let (dys, scale) = self.cells.broadcast(dys, &self.scale)?;
        let (_, slope) = self.cells.broadcast(xs, &self.slope)?;
        let (_, shift) = self.cells.broadcast(xs, &self.shift)?;
        let along = values.broadcast_sub(&mean)?.broadcast_mul(&slope)?;
        let dxs = (dys.broadcast_mul(&scale)? - along)?.broadcast_sub(&shift)?;
        Ok([dxs.to_dtype(xs.dtype())?.reshape(xs.shape())?])
    }
}
