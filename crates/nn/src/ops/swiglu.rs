use candle_core::{D, Result, Tensor, bail};

use super::curves::sigmoid;
use crate::graph::{Backward, record};
use crate::kernel::{self, Extent, Kernel, Number, Plan};

/// silu(a) · b, where a and b are the halves of the last dimension, as [`candle_nn::ops::swiglu`], in one operation. Any strides.
///
/// It keeps its output.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::swiglu;
///
/// # fn main() -> candle_core::Result<()> {
/// let both = Tensor::randn(0f32, 1., (2, 10, 128), &Device::Cpu)?; // one product for gate and up
/// assert_eq!(swiglu(&both)?.dims(), [2, 10, 64]);
/// # Ok(())
/// # }
/// ```
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
    if !kernel::runs_on(xs.device()) {
        return candle_nn::ops::swiglu(xs);
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

    fn plan(&self, [xs]: [&Tensor; 1]) -> Plan {
        let mut dims = xs.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.width;
        }
        let plan = Plan::of_rows(xs, 2 * self.width, [Extent::Row(2 * self.width)]);
        Plan {
            outputs: vec![(dims.into(), Extent::Row(self.width))],
            ..plan
        }
    }

    fn cpu<S: Number>(&self, _: usize, [xs]: [&[S]; 1], [ys]: [&mut [S]; 1]) {
        let width = self.width;
        for (y, x) in ys.chunks_mut(width).zip(xs.chunks(2 * width)) {
            let (a, b) = x.split_at(width);
            for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                *y = *a * sigmoid(*a) * *b;
            }
        }
    }
}

/// da = b · silu'(a) · dy, db = silu(a) · dy
pub struct SwigluBackward {
    pub width: usize,
}

impl Kernel<2, 1> for SwigluBackward {
    const NAME: &'static str = "swiglu_backward";

    fn plan(&self, [xs, _]: [&Tensor; 2]) -> Plan {
        let both = 2 * self.width;
        Plan::of_rows(xs, both, [Extent::Row(both), Extent::Row(self.width)])
    }

    fn cpu<S: Number>(&self, _: usize, [xs, dys]: [&[S]; 2], [dxs]: [&mut [S]; 1]) {
        let width = self.width;
        let rows = xs.chunks(2 * width).zip(dys.chunks(width));
        for (dx, (x, dy)) in dxs.chunks_mut(2 * width).zip(rows) {
            let ((da, db), (a, b)) = (dx.split_at_mut(width), x.split_at(width));
            let given = a.iter().zip(b).zip(dy);
            for ((da, db), ((a, b), dy)) in da.iter_mut().zip(db).zip(given) {
                let s = sigmoid(*a);
                let slope = s * (S::one() + *a * (S::one() - s));
                *da = *b * slope * *dy;
                *db = *a * s * *dy;
            }
        }
    }
}
