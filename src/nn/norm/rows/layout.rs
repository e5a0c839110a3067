use candle_core::{D, Result, Tensor, WithDType};
use num_traits::{Float, Zero};

use crate::nn::kernel::{Element, sum_of, sum_of_products};

/// Normalization of rows of `width` elements.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    pub width: usize,
    pub eps: f64,
    /// Subtracts the mean first, as layer norm does and RMS norm does not.
    pub center: bool,
}

impl Rows {
    /// Writes a row, divided by its standard deviation or root mean square, and returns the divisor's reciprocal.
    pub fn divide<T: Element>(self, row: &[T], out: &mut [T::Sum]) -> T::Sum {
        let len = T::Sum::from_f64(self.width as f64);
        for (out, x) in out.iter_mut().zip(row) {
            *out = x.widen();
        }
        if self.center {
            let mean = sum_of(out, out, |x, _| x) / len;
            for out in out.iter_mut() {
                *out -= mean;
            }
        }
        let squares = sum_of_products(out, out);
        let scale = (squares / len + T::Sum::from_f64(self.eps)).sqrt().recip();
        for out in out.iter_mut() {
            *out *= scale;
        }
        scale
    }

    /// The rows divided by their standard deviation or root mean square, and the divisors' reciprocals, by candle's operations.
    pub fn divided(self, xs: &Tensor) -> Result<(Tensor, Tensor)> {
        let xs = match self.center {
            true => xs.broadcast_sub(&xs.mean_keepdim(D::Minus1)?)?,
            false => xs.clone(),
        };
        let squares = xs.sqr()?.mean_keepdim(D::Minus1)?;
        let scale = (squares + self.eps)?.sqrt()?.recip()?;
        Ok((xs.broadcast_mul(&scale)?, scale))
    }
}

/// A row of zeros to compute in.
pub fn row<T: Element>(width: usize) -> Vec<T::Sum> {
    vec![T::Sum::zero(); width]
}
