use crate::kernel::{Number, sum_of, sum_of_products};

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
    ///
    /// The mean is that of the differences from the first element: the mean of the elements themselves, if it is large, would be
    /// rounded by more than they differ.
    pub fn divide<S: Number>(self, row: &[S], out: &mut [S]) -> S {
        let len = S::of(self.width as f64);
        let first = match row.first() {
            Some(first) if self.center => *first,
            _ => S::zero(),
        };
        for (out, x) in out.iter_mut().zip(row) {
            *out = *x - first;
        }
        if self.center {
            let mean = sum_of(out, out, |x, _| x) / len;
            for out in out.iter_mut() {
                *out -= mean;
            }
        }
        let squares = sum_of_products(out, out);
        let scale = (squares / len + S::of(self.eps)).sqrt().recip();
        for out in out.iter_mut() {
            *out *= scale;
        }
        scale
    }
}
