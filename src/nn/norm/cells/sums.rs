use candle_core::{Result, Shape, Tensor};

use super::Cells;
use crate::nn::kernel::{Element, Kernel};

/// Σ dy and Σ dy · (x − mean) for each cell, from x and dy. The means are f64 for f64 and f32 for all others.
pub struct CellSums {
    pub cells: Cells,
    pub mean: Tensor,
}

impl Kernel<2, 2> for CellSums {
    const NAME: &'static str = "cell_sums";

    type Output<T: Element> = T::Sum;

    fn shapes(&self, _: [&Tensor; 2]) -> Result<[Shape; 2]> {
        Ok([self.cells.cells.into(), self.cells.cells.into()])
    }

    fn cpu<T: Element>(
        &self,
        inputs: [&[T]; 2],
        [sums, products]: [&mut [T::Sum]; 2],
    ) -> Result<()> {
        let means: Vec<T::Sum> = self.mean.to_vec1()?;
        let of_dy = self.cells.sums(inputs, &means, |_, _, dy| dy);
        let of_both = self
            .cells
            .sums(inputs, &means, |mean, x, dy| (x - mean) * dy);
        for (out, sum) in sums
            .iter_mut()
            .zip(of_dy)
            .chain(products.iter_mut().zip(of_both))
        {
            *out = sum;
        }
        Ok(())
    }

    fn composed(&self, [xs, dys]: [&Tensor; 2]) -> Result<[Tensor; 2]> {
        let (xs, mean) = self.cells.broadcast(xs, &self.mean)?;
        let (dys, _) = self.cells.broadcast(dys, &self.mean)?;
        let products = (xs.broadcast_sub(&mean)? * &dys)?;
        Ok([dys.sum((0, 2))?, products.sum((0, 2))?])
    }
}
