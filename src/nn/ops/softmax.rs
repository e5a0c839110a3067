use candle_core::{D, DType, Result, Shape, Tensor};

use crate::nn::graph::{Backward, record};
use crate::nn::kernel::{self, Element, Kernel, by_rows, sum_of_products};

/// Softmax over the last dimension, as [`candle_nn::ops::softmax_last_dim`], with a backward pass. Any strides.
/// The sums of f16 and bf16 are computed in f32, also on the CPU, where candle's are not.
///
/// It keeps its output.
///
/// # Errors
/// candle's, for a tensor without dimensions or of a type other than f64, f32, f16 and bf16.
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    let width = xs.dim(D::Minus1)?;
    if xs.elem_count() == 0 {
        return Ok(xs.clone());
    }
    let ys = forward(&xs.detach().contiguous()?)?;
    let backward = move |given: Backward<1>| {
        let [dx] = kernel::run(&SoftmaxBackward { width }, [&given.output, &given.gradient])?;
        Ok([Some(dx)])
    };
    record("softmax-last-dim", [xs], ys, backward)
}

fn forward(xs: &Tensor) -> Result<Tensor> {
    match xs.dtype() {
        // There candle sums in the same type: the sum of a long row stops growing.
        dtype @ (DType::F16 | DType::BF16) if xs.device().is_cpu() => {
            candle_nn::ops::softmax_last_dim(&xs.to_dtype(DType::F32)?)?.to_dtype(dtype)
        }
        _ => candle_nn::ops::softmax_last_dim(xs),
    }
}

/// dx = y · (dy − Σ y · dy) for each row.
pub struct SoftmaxBackward {
    pub width: usize,
}

impl Kernel<2, 1> for SoftmaxBackward {
    const NAME: &'static str = "softmax_backward";

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
                let sum = sum_of_products(y, dy);
                for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                    *dx = T::narrow(y.widen() * (dy.widen() - sum));
                }
            }
        });
        Ok(())
    }

    fn composed(&self, [ys, dys]: [&Tensor; 2]) -> Result<[Tensor; 1]> {
        let products = (ys * dys)?;
        let sums = products.sum_keepdim(D::Minus1)?;
        Ok([(products - ys.broadcast_mul(&sums)?)?])
    }
}
