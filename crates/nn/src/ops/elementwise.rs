use candle_core::{DType, Error, Result, Tensor};

use super::curves::{Curve, slopes, values};
use crate::graph::record_lean;
use crate::kernel::{self, Extent, Kernel, Number, Plan};

/// Applies a curve to each element. It keeps its input, from which the backward pass computes the derivative.
pub fn apply(curve: Curve, xs: &Tensor) -> Result<Tensor> {
    if !kernel::runs_on(xs.device()) {
        return curve.by_candle(xs);
    }
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

    fn plan(&self, [xs]: [&Tensor; 1]) -> Plan {
        Plan::of_rows(xs, 1, [Extent::Row(1)])
    }

    fn cpu<S: Number>(&self, _: usize, [xs]: [&[S]; 1], [ys]: [&mut [S]; 1]) {
        values(self.0, xs, ys);
    }
}

/// dx = dy · curve'(x)
pub struct Slopes(pub Curve);

impl Kernel<2, 1> for Slopes {
    const NAME: &'static str = "activation_backward";

    fn plan(&self, [xs, _]: [&Tensor; 2]) -> Plan {
        Plan::of_rows(xs, 1, [Extent::Row(1); 2])
    }

    fn cpu<S: Number>(&self, _: usize, [xs, dys]: [&[S]; 2], [dxs]: [&mut [S]; 1]) {
        slopes(self.0, xs, dys, dxs);
    }
}
