mod backward;
mod forward;

use candle_core::{DType, Result, Tensor, WithDType};
use num_traits::{Float, Zero};

pub use backward::RowsBackward;
pub use forward::RowsForward;

use super::{check_type, zeros};
use crate::nn::graph::{Backward, Gradients, record};
use crate::nn::kernel::{self, Element, sum_of, sum_of_products};

/// Normalization of rows of `width` elements, times a weight, plus a bias.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    pub width: usize,
    pub eps: f64,
    /// Subtracts the mean first, as layer norm does and RMS norm does not.
    pub center: bool,
    /// Computes the forward pass by candle's fused operation where it has one.
    pub fused: bool,
}

impl Rows {
    fn name(self) -> &'static str {
        match self.center {
            true => "layer-norm",
            false => "rms-norm",
        }
    }

    /// Normalizes the rows of `xs`. The parameters have `width` elements.
    pub fn normalize(self, xs: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        check_type(self.name(), xs, weight)?;
        if let Some(bias) = bias {
            check_type(self.name(), xs, bias)?;
        }
        let ys = self.forward(xs, weight, bias)?;
        match bias {
            None => record(self.name(), [xs, weight], ys, move |given| {
                self.backward(given)
            }),
            Some(bias) => record(self.name(), [xs, weight, bias], ys, move |given| {
                self.backward(given)
            }),
        }
    }

    fn forward(self, xs: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if xs.elem_count() == 0 {
            return xs.zeros_like();
        }
        // candle sums f64 in f32 on CUDA, and refuses it on the CPU.
        if self.fused && xs.dtype() != DType::F64 {
            let xs = xs.detach().contiguous()?;
            let weight = weight.detach().contiguous()?;
            let eps = self.eps as f32;
            match bias {
                None if !self.center => return candle_nn::ops::rms_norm(&xs, &weight, eps),
                Some(bias) if self.center => {
                    let bias = bias.detach().contiguous()?;
                    return candle_nn::ops::layer_norm(&xs, &weight, &bias, eps);
                }
                _ => {}
            }
        }
        let no_bias;
        let bias = match bias {
            Some(bias) => bias,
            None => {
                no_bias = weight.zeros_like()?;
                &no_bias
            }
        };
        let [ys] = kernel::run(&RowsForward(self), [xs, weight, bias])?;
        Ok(ys)
    }

    /// The gradients of the input and of its one or two parameters.
    fn backward<const N: usize>(self, given: Backward<N>) -> Result<Gradients<N>> {
        if given.output.elem_count() == 0 {
            return zeros(&given);
        }
        let Backward {
            inputs,
            gradient,
            needs,
            ..
        } = given;
        let [xs, weight, ..] = inputs.as_slice() else {
            return Err(kernel::mismatch(self.name()));
        };
        let with_sums = needs.iter().skip(1).any(|needed| *needed);
        let computed = RowsBackward {
            rows: self,
            with_sums,
        };
        let mut computed = kernel::run(&computed, [xs, weight, &gradient])?.into_iter();
        Ok(needs.map(|needed| computed.next().filter(|_| needed)))
    }

    /// Writes a row, divided by its standard deviation or root mean square, and returns the divisor's reciprocal.
    fn divide<T: Element>(self, row: &[T], out: &mut [T::Sum]) -> T::Sum {
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
}

/// A row of zeros to compute in.
fn row<T: Element>(width: usize) -> Vec<T::Sum> {
    vec![T::Sum::zero(); width]
}
