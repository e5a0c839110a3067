use candle_core::{Result, Shape, Tensor, WithDType};

use super::Cells;
use crate::nn::kernel::{Element, Kernel};
use crate::nn::norm::statistics_type;

/// The mean and the variance of each cell; without `center` 0 and the mean of squares.
pub struct CellMoments {
    pub cells: Cells,
    pub center: bool,
}

impl Kernel<1, 2> for CellMoments {
    const NAME: &'static str = "cell_moments";

    type Output<T: Element> = T::Sum;

    fn shapes(&self, _: [&Tensor; 1]) -> Result<[Shape; 2]> {
        Ok([self.cells.cells.into(), self.cells.cells.into()])
    }

    fn cpu<T: Element>(&self, [xs]: [&[T]; 1], outputs: [&mut [T::Sum]; 2]) -> Result<()> {
        let [means, variances] = outputs;
        let len = T::Sum::from_f64(self.cells.len() as f64);
        if self.center {
            // The means are still zeros.
            let sums = self.cells.sums([xs, xs], means, |_, x, _| x);
            means
                .iter_mut()
                .zip(sums)
                .for_each(|(mean, sum)| *mean = sum / len);
        }
        let squares = self
            .cells
            .sums([xs, xs], means, |mean, x, _| (x - mean) * (x - mean));
        for (variance, squares) in variances.iter_mut().zip(squares) {
            *variance = squares / len;
        }
        Ok(())
    }

    fn composed(&self, [xs]: [&Tensor; 1]) -> Result<[Tensor; 2]> {
        let mean = Tensor::zeros(self.cells.cells, statistics_type(xs.dtype()), xs.device())?;
        let (xs, zeros) = self.cells.broadcast(xs, &mean)?;
        let mean = match self.center {
            true => xs.mean_keepdim((0, 2))?,
            false => zeros,
        };
        let variance = xs.broadcast_sub(&mean)?.sqr()?.mean_keepdim((0, 2))?;
        Ok([mean.flatten_all()?, variance.flatten_all()?])
    }
}
