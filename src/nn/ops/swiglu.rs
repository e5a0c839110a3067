use candle_core::{D, Result, Shape, Tensor, bail};
use num_traits::One;

use super::curves::sigmoid;
use crate::nn::graph::{Backward, record};
use crate::nn::kernel::{self, Element, Kernel, by_rows};

/// silu(a) · b, where a and b are the halves of the last dimension, as [`candle_nn::ops::swiglu`], in one operation. Any strides.
///
/// It keeps its output.
///
/// # Errors
/// For a tensor without dimensions, a last dimension that has no halves, or a type other than f64, f32, f16 and bf16.
pub fn swiglu(xs: &Tensor) -> Result<Tensor> {
    let both = xs.dim(D::Minus1)?;
    if both % 2 != 0 {
        bail!(
            "swiglu takes halves of the last dimension, got {:?}",
            xs.shape()
        );
    }
    let width = both / 2;
    let [ys] = kernel::run(&Swiglu { width }, [xs])?;
    let backward = move |given: Backward<1>| {
        let [xs] = &given.inputs;
        let [dxs] = kernel::run(&SwigluBackward { width }, [xs, &given.gradient])?;
        Ok([Some(dxs)])
    };
    record("swiglu", [xs], ys, backward)
}

pub struct Swiglu {
    pub width: usize,
}

impl Kernel<1, 1> for Swiglu {
    const NAME: &'static str = "swiglu";

    type Output<T: Element> = T;

    fn shapes(&self, [xs]: [&Tensor; 1]) -> Result<[Shape; 1]> {
        let mut dims = xs.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.width;
        }
        Ok([dims.into()])
    }

    fn cpu<T: Element>(&self, [xs]: [&[T]; 1], [ys]: [&mut [T]; 1]) -> Result<()> {
        let width = self.width;
        by_rows(ys, width, |first, ys| {
            let rows = xs.chunks(2 * width).skip(first);
            for (y, x) in ys.chunks_mut(width).zip(rows) {
                let (a, b) = x.split_at(width);
                for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                    let a = a.widen();
                    *y = T::narrow(a * sigmoid(a) * b.widen());
                }
            }
        });
        Ok(())
    }

    fn composed(&self, [xs]: [&Tensor; 1]) -> Result<[Tensor; 1]> {
        Ok([candle_nn::ops::swiglu(xs)?])
    }
}

/// da = b · silu'(a) · dy, db = silu(a) · dy
pub struct SwigluBackward {
    pub width: usize,
}

impl Kernel<2, 1> for SwigluBackward {
    const NAME: &'static str = "swiglu_backward";

    type Output<T: Element> = T;

    fn shapes(&self, [xs, _]: [&Tensor; 2]) -> Result<[Shape; 1]> {
        Ok([xs.shape().clone()])
    }

    fn cpu<T: Element>(&self, [xs, dys]: [&[T]; 2], [dxs]: [&mut [T]; 1]) -> Result<()> {
        let width = self.width;
        by_rows(dxs, 2 * width, |first, dxs| {
            let xs = xs.chunks(2 * width).skip(first);
            let rows = xs.zip(dys.chunks(width).skip(first));
            for (dx, (x, dy)) in dxs.chunks_mut(2 * width).zip(rows) {
                let ((da, db), (a, b)) = (dx.split_at_mut(width), x.split_at(width));
                let given = a.iter().zip(b).zip(dy);
                for ((da, db), ((a, b), dy)) in da.iter_mut().zip(db).zip(given) {
                    let (a, dy) = (a.widen(), dy.widen());
                    let s = sigmoid(a);
                    let slope = s * (T::Sum::one() + a * (T::Sum::one() - s));
                    *da = T::narrow(b.widen() * slope * dy);
                    *db = T::narrow(a * s * dy);
                }
            }
        });
        Ok(())
    }

    fn composed(&self, [xs, dys]: [&Tensor; 2]) -> Result<[Tensor; 1]> {
        let a = xs.narrow(D::Minus1, 0, self.width)?;
        let b = xs.narrow(D::Minus1, self.width, self.width)?;
        let s = candle_nn::ops::sigmoid(&a)?;
        let silu = (&a * &s)?;
        let slope = (&s + (&silu * s.affine(-1., 1.)?)?)?;
        let da = ((b * slope)? * dys)?;
        Ok([Tensor::cat(&[da, (silu * dys)?], D::Minus1)?])
    }
}
