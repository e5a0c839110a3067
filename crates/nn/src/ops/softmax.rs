use candle_core::shape::Dim;
use candle_core::{D, Result, Tensor};

use crate::graph::{Backward, record};
use crate::kernel::{self, Extent, Kernel, Number, Plan, max_of, sum_of, sum_of_products};

/// Softmax over a dimension, as [`candle_nn::ops::softmax`], in one operation. Any strides. The sums of f16 and bf16 are computed in
/// f32.
///
/// It keeps its output. Over another dimension than the last, both passes work on a transposed copy.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::softmax;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[1f32, 1.], [0., f32::NEG_INFINITY]], &Device::Cpu)?;
/// let y = softmax(&x, 1)?; // of the shape of x
/// assert_eq!(y.to_vec2::<f32>()?, [[0.5, 0.5], [1., 0.]]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// candle's, for a dimension out of range or a type other than f64, f32, f16 and bf16.
pub fn softmax<D: Dim>(xs: &Tensor, dim: D) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), "softmax")?;
    along(xs, dim, "softmax", false)
}

/// [`softmax`] over the last dimension, as [`candle_nn::ops::softmax_last_dim`], with a backward pass. Any strides.
///
/// It keeps its output.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::ops::softmax_last_dim;
///
/// # fn main() -> candle_core::Result<()> {
/// let scores = Tensor::zeros((2, 8, 10, 4), DType::F32, &Device::Cpu)?; // [batch, heads, queries, keys]
/// let weights = softmax_last_dim(&scores)?;
/// assert_eq!(weights.get(0)?.get(0)?.get(0)?.to_vec1::<f32>()?, [0.25; 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// candle's, for a tensor without dimensions or of a type other than f64, f32, f16 and bf16.
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    softmax(xs, D::Minus1)
}

/// The logarithm of [`softmax`], as [`candle_nn::ops::log_softmax`], in one operation.
///
/// It keeps its output.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::log_softmax;
///
/// # fn main() -> candle_core::Result<()> {
/// let logits = Tensor::new(&[[2f32, 2.]], &Device::Cpu)?;
/// let logs = log_softmax(&logits, 1)?.to_vec2::<f32>()?;
/// assert!((logs[0][0] + 2f32.ln()).abs() < 1e-6); // the logarithm of 1/2
/// # Ok(())
/// # }
/// ```
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
    if !kernel::runs_on(xs.device()) {
        return match logarithm {
            true => candle_nn::ops::log_softmax(xs, dim),
            false => candle_nn::ops::softmax(xs, dim),
        };
    }
    let width = xs.dim(dim)?;
    let kernel = Softmax { width, logarithm };
    let [ys] = kernel::run(&kernel, [&xs.detach().transpose(dim, D::Minus1)?])?;
    let ys = kernel::dense(name, &ys.transpose(dim, D::Minus1)?)?;
    let backward = move |given: Backward<1>| {
        let ys = given.output.transpose(dim, D::Minus1)?;
        let dys = given.gradient.transpose(dim, D::Minus1)?;
        let [dxs] = kernel::run(&kernel, [&ys, &dys])?;
        Ok([Some(dxs.transpose(dim, D::Minus1)?)])
    };
    record(name, [xs], ys, backward)
}

/// e^(x − max) / Σ e^(x − max) for each row, or its logarithm.
#[derive(Clone, Copy)]
pub struct Softmax {
    pub width: usize,
    pub logarithm: bool,
}

impl Kernel<1, 1> for Softmax {
    const NAME: &'static str = "softmax";

    fn plan(&self, [xs]: [&Tensor; 1]) -> Plan {
        Plan::of_rows(xs, self.width, [Extent::Row(self.width)])
    }

    fn cpu<S: Number>(&self, _: usize, [xs]: [&[S]; 1], [ys]: [&mut [S]; 1]) {
        for (y, x) in ys.chunks_mut(self.width).zip(xs.chunks(self.width)) {
            let max = max_of(x);
            if self.logarithm {
                let log = sum_of(x, x, |x, _| (x - max).fast_exp()).ln();
                y.iter_mut().zip(x).for_each(|(y, x)| *y = (*x - max) - log);
                continue;
            }
            y.iter_mut()
                .zip(x)
                .for_each(|(y, x)| *y = (*x - max).fast_exp());
            let sum = sum_of(y, y, |y, _| y);
            y.iter_mut().for_each(|y| *y /= sum);
        }
    }
}

/// Of the output y: y · (dy − Σ y · dy), or for logarithms dy − e^y · Σ dy.
impl Kernel<2, 1> for Softmax {
    const NAME: &'static str = "softmax_backward";

    fn plan(&self, [ys, _]: [&Tensor; 2]) -> Plan {
        Plan::of_rows(ys, self.width, [Extent::Row(self.width); 2])
    }

    fn cpu<S: Number>(&self, _: usize, [ys, dys]: [&[S]; 2], [dxs]: [&mut [S]; 1]) {
        let Softmax { width, logarithm } = *self;
        let rows = ys.chunks(width).zip(dys.chunks(width));
        for (dx, (y, dy)) in dxs.chunks_mut(width).zip(rows) {
            let all = dx.iter_mut().zip(y).zip(dy);
            if logarithm {
                let sum = sum_of(dy, dy, |dy, _| dy);
                all.for_each(|((dx, y), dy)| *dx = *dy - y.fast_exp() * sum);
            } else {
                let sum = sum_of_products(y, dy);
                all.for_each(|((dx, y), dy)| *dx = *y * (*dy - sum));
            }
        }
    }
}
