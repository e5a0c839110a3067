use candle_core::{DType, Error, Result, Shape, Tensor, Var};

use super::curves::{Curve, slopes, values};
use crate::nn::graph::record_lean;
use crate::nn::kernel::{self, Element, Kernel, by_rows, sum_type};

/// Applies a curve to each element. It keeps its input, from which the backward pass computes the derivative.
pub fn apply(curve: Curve, xs: &Tensor) -> Result<Tensor> {
    let ys = forward(curve, &xs.detach())?;
    let kept = xs.detach();
    let backward = move |gradient: Tensor, _| {
        let [dxs] = kernel::run(&Slopes(curve), [&kept, &gradient])?;
        Ok([Some(dxs)])
    };
    record_lean("activation", [xs], ys, backward)
}

fn forward(curve: Curve, xs: &Tensor) -> Result<Tensor> {
    // Some of candle's operations fail for no elements on CUDA.
    let by_candle = curve.is_candles() && xs.elem_count() > 0;
    match xs.dtype() {
        DType::F32 | DType::F64 if by_candle => curve.by_candle(xs),
        // candle rounds f16 and bf16 after each step.
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => {
            let [ys] = kernel::run(&Values(curve), [xs])?;
            Ok(ys)
        }
        dtype => Err(Error::UnsupportedDTypeForOp(dtype, "activation").bt()),
    }
}

/// y = curve(x)
pub struct Values(pub Curve);

impl Kernel<1, 1> for Values {
    const NAME: &'static str = "activation";

    type Output<T: Element> = T;

    fn shapes(&self, [xs]: [&Tensor; 1]) -> Result<[Shape; 1]> {
        Ok([xs.shape().clone()])
    }

    fn cpu<T: Element>(&self, [xs]: [&[T]; 1], [ys]: [&mut [T]; 1]) -> Result<()> {
        by_rows(ys, 1, |first, ys| {
            values(self.0, xs.get(first..).unwrap_or_default(), ys);
        });
        Ok(())
    }

    fn composed(&self, [xs]: [&Tensor; 1]) -> Result<[Tensor; 1]> {
        let ys = self.0.by_candle(&xs.to_dtype(sum_type(xs.dtype()))?)?;
        Ok([ys.to_dtype(xs.dtype())?])
    }
}

/// dx = dy · curve'(x)
pub struct Slopes(pub Curve);

impl Kernel<2, 1> for Slopes {
    const NAME: &'static str = "activation_backward";

    type Output<T: Element> = T;

    fn shapes(&self, [xs, _]: [&Tensor; 2]) -> Result<[Shape; 1]> {
        Ok([xs.shape().clone()])
    }

    fn cpu<T: Element>(&self, [xs, dys]: [&[T]; 2], [dxs]: [&mut [T]; 1]) -> Result<()> {
        by_rows(dxs, 1, |first, dxs| {
            let xs = xs.get(first..).unwrap_or_default();
            slopes(self.0, xs, dys.get(first..).unwrap_or_default(), dxs);
        });
        Ok(())
    }

    fn composed(&self, [xs, dys]: [&Tensor; 2]) -> Result<[Tensor; 1]> {
        let (dtype, wide) = (xs.dtype(), sum_type(xs.dtype()));
        let xs = Var::from_tensor(&xs.to_dtype(wide)?)?;
        let products = (self.0.by_candle(&xs)? * dys.to_dtype(wide)?)?;
        let gradient = products.sum_all()?.backward()?.remove(&xs);
        let gradient = gradient.map_or_else(|| xs.zeros_like(), |dxs| Ok(dxs.detach()))?;
        Ok([gradient.to_dtype(dtype)?])
    }
}
