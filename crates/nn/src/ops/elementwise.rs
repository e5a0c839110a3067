use candle_core::{D, DType, Result, Tensor, bail};

use super::curves::{Curve, sigmoid as logistic, slopes, values};
use crate::graph::{Backward, record, record_lean};
use crate::kernel::{self, Extent, Kernel, Number, Plan};

/// Applies a curve to each element. It keeps its input, from which the backward pass computes the derivative.
pub fn apply(curve: Curve, xs: &Tensor) -> Result<Tensor> {
    if !kernel::runs_on(xs.device()) {
        return curve.by_candle(xs);
    }
    let ys = forward(curve, &xs.detach())?;
    let kept = xs.detach();
    let backward = move |gradient: Tensor, _| {
        let [dxs] = kernel::run(&curve, [&kept, &gradient])?;
        Ok([Some(dxs)])
    };
    record_lean("activation", [xs], ys, backward)
}

fn forward(curve: Curve, xs: &Tensor) -> Result<Tensor> {
    // candle rounds f16 and bf16 after each step, and some of its operations fail for no elements on CUDA, or for very many.
    let can_be_candles = matches!(xs.dtype(), DType::F32 | DType::F64)
        && xs.elem_count() > 0
        && kernel::is_in_range(xs.device(), xs.elem_count());
    if can_be_candles && curve.is_candles() {
        return curve.by_candle(xs);
    }
    let [ys] = kernel::run(&curve, [xs])?;
    Ok(ys)
}

/// y = curve(x)
impl Kernel<1, 1> for Curve {
    const NAME: &'static str = "activation";

    fn plan(&self, [xs]: [&Tensor; 1]) -> Plan {
        Plan::of_rows(xs, 1, [Extent::Row(1)])
    }

    fn cpu<S: Number>(&self, _: usize, [xs]: [&[S]; 1], [ys]: [&mut [S]; 1]) {
        values(*self, xs, ys);
    }
}

/// dx = dy · curve'(x)
impl Kernel<2, 1> for Curve {
    const NAME: &'static str = "activation_backward";

    fn plan(&self, [xs, _]: [&Tensor; 2]) -> Plan {
        Plan::of_rows(xs, 1, [Extent::Row(1); 2])
    }

    fn cpu<S: Number>(&self, _: usize, [xs, dys]: [&[S]; 2], [dxs]: [&mut [S]; 1]) {
        slopes(*self, xs, dys, dxs);
    }
}

/// x · sigmoid(x) (Elfwing et al. 2017, arXiv 1702.03118), as [`candle_nn::ops::silu`].
///
/// It keeps its input.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom_nn::ops::silu;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Var::new(&[-1f32, 0., 1.], &Device::Cpu)?;
/// let gradients = silu(&x)?.sum_all()?.backward()?;
/// let slopes = gradients.get(&x).expect("a gradient").to_vec1::<f32>()?;
/// assert!((slopes[1] - 0.5).abs() < 1e-6); // the slope at 0
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// For a type other than f64, f32, f16 and bf16.
pub fn silu(xs: &Tensor) -> Result<Tensor> {
    apply(Curve::Silu, xs)
}

/// 1 / (1 + e^−x), as [`candle_nn::ops::sigmoid`].
///
/// It keeps its input.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::sigmoid;
///
/// let x = Tensor::new(&[-200f32, 0., 200.], &Device::Cpu)?;
/// assert_eq!(sigmoid(&x)?.to_vec1::<f32>()?, [0., 0.5, 1.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`silu`].
pub fn sigmoid(xs: &Tensor) -> Result<Tensor> {
    apply(Curve::Sigmoid, xs)
}

/// (x + 3) / 6 between 0 and 1, as [`candle_nn::ops::hard_sigmoid`].
///
/// It keeps its input.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::hard_sigmoid;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[-4f32, 0., 4.], &Device::Cpu)?;
/// assert_eq!(hard_sigmoid(&x)?.to_vec1::<f32>()?, [0., 0.5, 1.]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`silu`].
pub fn hard_sigmoid(xs: &Tensor) -> Result<Tensor> {
    apply(Curve::HardSigmoid, xs)
}

/// x · tanh(ln(1 + e^x)) (Misra 2019, arXiv 1908.08681), as [`candle_nn::ops::mish`], but finite also where candle's e^x is not.
///
/// It keeps its input.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::mish;
///
/// let x = Tensor::new(&[0f32, 200.], &Device::Cpu)?;
/// assert_eq!(mish(&x)?.to_vec1::<f32>()?, [0., 200.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`silu`].
pub fn mish(xs: &Tensor) -> Result<Tensor> {
    apply(Curve::Mish, xs)
}

/// x, or x · `negative_slope` where x is negative, as [`candle_nn::ops::leaky_relu`]. The derivative at zero is the mean of both slopes.
///
/// It keeps its input.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::leaky_relu;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[-2f32, 3.], &Device::Cpu)?;
/// assert_eq!(leaky_relu(&x, 0.5)?.to_vec1::<f32>()?, [-1., 3.]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`silu`].
pub fn leaky_relu(xs: &Tensor, negative_slope: f64) -> Result<Tensor> {
    apply(Curve::LeakyRelu(negative_slope), xs)
}

/// `gamma` · x, or `gamma` · `alpha` · (e^x − 1) where x is not positive (Klambauer et al. 2017, arXiv 1706.02515), as
/// [`candle_nn::ops::selu`], which accepts f32 only.
///
/// It keeps its input.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::selu;
///
/// let x = Tensor::new(&[f32::NEG_INFINITY, 0., 3.], &Device::Cpu)?;
/// let y = selu(&x, 1.5, 2.)?; // from −gamma · alpha on
/// assert_eq!(y.to_vec1::<f32>()?, [-3., 0., 6.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`silu`].
pub fn selu(xs: &Tensor, alpha: f32, gamma: f32) -> Result<Tensor> {
    let (alpha, gamma) = (alpha.into(), gamma.into());
    apply(Curve::Selu { alpha, gamma }, xs)
}

/// a + b, of one shape and type, for example a block's input and what the block adds to it.
///
/// It keeps nothing. candle's sum keeps both tensors until the graph is dropped.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::ops::add;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::ones((2, 4), DType::F32, &Device::Cpu)?; // what a block receives
/// let block = Tensor::ones((2, 4), DType::F32, &Device::Cpu)?; // and what it computes
/// assert_eq!(add(&x, &block)?.to_vec2::<f32>()?, [[2.; 4]; 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes, types or devices differ.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    kernel::in_range("add", [a])?;
    let sum = (a.detach() + b.detach())?;
    record_lean("add", [a, b], sum, |gradient, needs| {
        Ok(needs.map(|needed| needed.then(|| gradient.clone())))
    })
}

/// silu(gate) · up, as [`swiglu`](super::swiglu()) of two tensors (Shazeer 2020, arXiv 2002.05202).
///
/// It keeps the two inputs.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::silu_mul;
///
/// # fn main() -> candle_core::Result<()> {
/// // The two products of a perceptron, as in Llama.
/// let gate = Tensor::randn(0f32, 1., (2, 10, 64), &Device::Cpu)?; // [batch, tokens, width]
/// let up = Tensor::randn(0f32, 1., (2, 10, 64), &Device::Cpu)?;
/// assert_eq!(silu_mul(&gate, &up)?.dims(), [2, 10, 64]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes, types or devices differ, or for a type other than f64, f32, f16 and bf16.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if !kernel::runs_on(gate.device()) {
        return silu(gate)? * up;
    }
    if gate.shape() != up.shape() {
        let (gate, up) = (gate.shape(), up.shape());
        bail!("silu_mul takes tensors of one shape, got {gate:?} and {up:?}");
    }
    let [product] = kernel::run(&Gated, [gate, up])?;
    let kept = [gate.detach(), up.detach()];
    record_lean("silu_mul", [gate, up], product, move |gradient, needs| {
        let [gate, up] = &kept;
        let gradients = kernel::run(&Gated, [gate, up, &gradient])?;
        let [of_gate, of_up] = gradients.map(Some);
        Ok([of_gate.filter(|_| needs[0]), of_up.filter(|_| needs[1])])
    })
}

/// silu(a) · b of two tensors.
pub struct Gated;

impl Kernel<2, 1> for Gated {
    const NAME: &'static str = "silu_mul";

    fn plan(&self, [gate, _]: [&Tensor; 2]) -> Plan {
        Plan::of_rows(gate, 1, [Extent::Row(1); 2])
    }

    fn cpu<S: Number>(&self, _: usize, [a, b]: [&[S]; 2], [ys]: [&mut [S]; 1]) {
        gate(a, b, ys);
    }
}

impl Kernel<3, 2> for Gated {
    const NAME: &'static str = "silu_mul_backward";

    fn plan(&self, [gate, ..]: [&Tensor; 3]) -> Plan {
        let plan = Plan::of_rows(gate, 1, [Extent::Row(1); 3]);
        let outputs = [&plan.outputs[..]; 2].concat();
        Plan { outputs, ..plan }
    }

    fn cpu<S: Number>(&self, _: usize, inputs: [&[S]; 3], outputs: [&mut [S]; 2]) {
        gate_backward(inputs, outputs);
    }
}

/// y = silu(a) · b
fn gate<S: Number>(a: &[S], b: &[S], y: &mut [S]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = *a * logistic(*a) * *b;
    }
}

/// da = b · silu'(a) · dy, db = silu(a) · dy
fn gate_backward<S: Number>([a, b, dy]: [&[S]; 3], [da, db]: [&mut [S]; 2]) {
    let given = a.iter().zip(b).zip(dy);
    for ((da, db), ((a, b), dy)) in da.iter_mut().zip(db).zip(given) {
        let s = logistic(*a);
        let slope = s * (S::one() + *a * (S::one() - s));
        *da = *b * slope * *dy;
        *db = *a * s * *dy;
    }
}

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
    let kernel = Swiglu { width };
    let [ys] = kernel::run(&kernel, [xs])?;
    let backward = move |given: Backward<1>| {
        let [xs] = &given.inputs;
        let [dxs] = kernel::run(&kernel, [xs, &given.gradient])?;
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
            gate(a, b, y);
        }
    }
}

impl Kernel<2, 1> for Swiglu {
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
            gate_backward([a, b, dy], [da, db]);
        }
    }
}
