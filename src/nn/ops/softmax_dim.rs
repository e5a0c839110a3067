use candle_core::shape::Dim;
use candle_core::{D, Result, Shape, Tensor};

use super::softmax::SoftmaxBackward;
use crate::nn::graph::{Backward, record};
use crate::nn::kernel::{self, Element, Functions, Kernel, by_rows, max_of, sum_of};

/// Softmax over a dimension, as [`candle_nn::ops::softmax`], in one operation. Any strides. The sums of f16 and bf16 are computed in
/// f32.
///
/// It keeps its output. Over another dimension than the last, both passes work on a transposed copy.
///
/// # Errors
/// candle's, for a dimension out of range or a type other than f64, f32, f16 and bf16.
pub fn softmax<D: Dim>(xs: &Tensor, dim: D) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), "softmax")?;
    along(xs, dim, "softmax", false)
}

/// The logarithm of [`softmax`], as [`candle_nn::ops::log_softmax`], in one operation.
///
/// It keeps its output.
///
/// # Errors
/// As [`softmax`].
pub fn log_softmax<D: Dim>(xs: &Tensor, d: D) -> Result<Tensor> {
    let dim = d.to_index(xs.shape(), "log-softmax")?;
    along(xs, dim, "log-softmax", true)
}

fn along(xs: &Tensor, dim: usize, name: &'static str, logarithm: bool) -> Result<Tensor> {
    if xs.elem_count() == 0 {
        return Ok(xs.clone());
    }
    let width = xs.dim(dim)?;
    let kernel = Softmax { width, logarithm };
    let [ys] = kernel::run(&kernel, [&xs.detach().transpose(dim, D::Minus1)?])?;
    let ys = ys.transpose(dim, D::Minus1)?.contiguous()?;
    let backward = move |given: Backward<1>| {
        let ys = given.output.transpose(dim, D::Minus1)?;
        let dys = given.gradient.transpose(dim, D::Minus1)?;
        let [dxs] = match logarithm {
            true => kernel::run(&LogSoftmaxBackward { width }, [&ys, &dys])?,
            false => kernel::run(&SoftmaxBackward { width }, [&ys, &dys])?,
        };
        Ok([Some(dxs.transpose(dim, D::Minus1)?)])
    };
    record(name, [xs], ys, backward)
}

/// e^(x − max) / Σ e^(x − max) for each row, or its logarithm.
pub struct Softmax {
    pub width: usize,
    pub logarithm: bool,
}

impl Kernel<1, 1> for Softmax {
    const NAME: &'static str = "softmax";

    type Output<T: Element> = T;

    fn shapes(&self, [xs]: [&Tensor; 1]) -> Result<[Shape; 1]> {
        Ok([xs.shape().clone()])
    }

    fn cpu<T: Element>(&self, [xs]: [&[T]; 1], [ys]: [&mut [T]; 1]) -> Result<()> {
        by_rows(ys, self.width, |first, ys| {
            let rows = xs.chunks(self.width).skip(first);
            for (y, x) in ys.chunks_mut(self.width).zip(rows) {
                match self.logarithm {
                    true => log_softmax_of(x, y),
                    false => softmax_of(x, y),
                }
            }
        });
        Ok(())
    }

    fn composed(&self, [xs]: [&Tensor; 1]) -> Result<[Tensor; 1]> {
        Ok([match self.logarithm {
            true => candle_nn::ops::log_softmax(xs, D::Minus1)?,
            false => candle_nn::ops::softmax(xs, D::Minus1)?,
        }])
    }
}

fn softmax_of<T: Element>(xs: &[T], ys: &mut [T]) {
    let max = max_of(xs);
    let sum = sum_of(xs, xs, |x, _| (x - max).fast_exp());
    // Powers kept in `ys` meanwhile would be rounded twice.
    for (y, x) in ys.iter_mut().zip(xs) {
        *y = T::narrow((x.widen() - max).fast_exp() / sum);
    }
}

fn log_softmax_of<T: Element>(xs: &[T], ys: &mut [T]) {
    let max = max_of(xs);
    let log = num_traits::Float::ln(sum_of(xs, xs, |x, _| (x - max).fast_exp()));
    for (y, x) in ys.iter_mut().zip(xs) {
        *y = T::narrow((x.widen() - max) - log);
    }
}

/// dx = dy − e^y · Σ dy for each row.
pub struct LogSoftmaxBackward {
    pub width: usize,
}

impl Kernel<2, 1> for LogSoftmaxBackward {
    const NAME: &'static str = "log_softmax_backward";

    type Output<T: Element> = T;

    fn shapes(&self, [ys, _]: [&Tensor; 2]) -> Result<[Shape; 1]> {
        Ok([ys.shape().clone()])
    }

    fn cpu<T: Element>(&self, [ys, dys]: [&[T]; 2], [dxs]: [&mut [T]; 1]) -> Result<()> {
        let width = self.width;
        by_rows(dxs, width, |first, dxs| {
            let ys = ys.chunks(width).skip(first);
            let rows = ys.zip(dys.chunks(width).skip(first));
            for (dx, (y, dy)) in dxs.chunks_mut(width).zip(rows) {
                let sum = sum_of(dy, dy, |dy, _| dy);
                for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                    *dx = T::narrow(dy.widen() - y.widen().fast_exp() * sum);
                }
            }
        });
        Ok(())
    }

    fn composed(&self, [ys, dys]: [&Tensor; 2]) -> Result<[Tensor; 1]> {
        let sums = dys.sum_keepdim(D::Minus1)?;
        Ok([(dys - ys.exp()?.broadcast_mul(&sums)?)?])
    }
}
