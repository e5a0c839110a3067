use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::Cells;
use crate::nn::kernel::{Element, Kernel, sum_of};

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

    fn cpu<T: Element>(&self, [xs, dys]: [&[T]; 2], outputs: [&mut [T::Sum]; 2]) -> Result<()> {
        let [sums, products] = outputs;
        let means: Vec<T::Sum> = self.mean.to_vec1()?;
        let cells = sums.par_iter_mut().zip(products).zip(means).enumerate();
        cells.for_each(|(cell, ((sum, product), mean))| {
            let parts = self.cells.parts(xs, cell).zip(self.cells.parts(dys, cell));
            for (x, dy) in parts {
                *sum += sum_of(dy, dy, |dy, _| dy);
                *product += sum_of(x, dy, |x, dy| (x - mean) * dy);
            }
        });
        Ok(())
    }

    fn composed(&self, [xs, dys]: [&Tensor; 2]) -> Result<[Tensor; 2]> {
        let (xs, mean) = self.cells.broadcast(xs, &self.mean)?;
        let (dys, _) = self.cells.broadcast(dys, &self.mean)?;
        let products = (xs.broadcast_sub(&mean)? * &dys)?;
        Ok([dys.sum((0, 2))?, products.sum((0, 2))?])
    }
}
