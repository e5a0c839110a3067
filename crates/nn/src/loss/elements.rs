//! Losses that are a mean over all elements, each one operation. They keep the input and the target.

use candle_core::{Error, Result, Tensor};

use crate::bounds::{at_least, at_most};
use crate::graph::{Backward, record};
use crate::kernel::{in_range, same_type, sum_type};

/// The mean of (x − y)² over all elements: as [`candle_nn::loss::mse`]. For f16 and bf16 the loss is f32, as is its sum.
///
/// It keeps its two inputs.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::loss::mse;
///
/// # fn main() -> candle_core::Result<()> {
/// let predicted = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
/// let wanted = Tensor::new(&[1f32, 4.], &Device::Cpu)?;
/// assert_eq!(mse(&predicted, &wanted)?.to_scalar::<f32>()?, 2.); // (0 + 4) / 2
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the shapes, types or devices differ.
pub fn mse(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    mean(
        "mse",
        inp,
        target,
        |x, y| (x - y)?.sqr(),
        |x, y| {
            let slope = ((x - y)? * 2.)?;
            Ok([slope.clone(), slope.neg()?])
        },
    )
}

/// The mean over all elements of (x − y)² / 2 where |x − y| is at most `delta`, and elsewhere of `delta` · (|x − y| − `delta` / 2): as
/// [`candle_nn::loss::huber`]. For f16 and bf16 the loss is f32, as is its sum.
///
/// It keeps its two inputs.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::loss::huber;
///
/// # fn main() -> candle_core::Result<()> {
/// let predicted = Tensor::new(&[0.5f32, 3.], &Device::Cpu)?;
/// let wanted = Tensor::new(&[0f32, 0.], &Device::Cpu)?;
/// let loss = huber(&predicted, &wanted, 1.)?.to_scalar::<f32>()?;
/// assert_eq!(loss, (0.125 + 2.5) / 2.);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`mse`].
pub fn huber(inp: &Tensor, target: &Tensor, delta: f64) -> Result<Tensor> {
    // With c = min(|x − y|, delta) it is c · (|x − y| − c / 2).
    let value = move |x: &Tensor, y: &Tensor| {
        let distance = (x - y)?.abs()?;
        let squared = at_most(&distance, delta)?;
        &squared * (&distance - (&squared * 0.5)?)?
    };
    mean("huber", inp, target, value, move |x, y| {
        let slope = at_most(&at_least(&(x - y)?, -delta)?, delta)?;
        Ok([slope.clone(), slope.neg()?])
    })
}

/// The mean over all elements of −y · ln σ(x) − (1 − y) · ln(1 − σ(x)), for logits x and probabilities y: as
/// [`candle_nn::loss::binary_cross_entropy_with_logit`], but finite also where σ(x) rounds to 0 or 1. For f16 and bf16 the loss is f32,
/// as is its sum.
///
/// It keeps its two inputs.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::loss::binary_cross_entropy_with_logit;
///
/// # fn main() -> candle_core::Result<()> {
/// let logits = Tensor::new(&[0f32, 200.], &Device::Cpu)?;
/// let targets = Tensor::new(&[1f32, 1.], &Device::Cpu)?;
/// let loss = binary_cross_entropy_with_logit(&logits, &targets)?.to_scalar::<f32>()?;
/// assert!((loss - 2f32.ln() / 2.).abs() < 1e-6); // the second one is right
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`mse`].
pub fn binary_cross_entropy_with_logit(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    // max(x, 0) − x · y + ln(1 + e^−|x|)
    let value = |x: &Tensor, y: &Tensor| {
        let rest = (x.abs()?.neg()?.exp()? + 1.)?.log()?;
        (at_least(x, 0.)? - (x * y)?)? + rest
    };
    let name = "binary-cross-entropy";
    mean(name, inp, target, value, |x, y| {
        let probability = ((x.neg()?.exp()? + 1.)?).recip()?;
        Ok([(probability - y)?, x.neg()?])
    })
}

/// The mean of `value` over all elements. Both closures are given f32, or f64 for f64; `slopes` returns the derivatives with respect
/// to both arguments.
fn mean(
    name: &'static str,
    inp: &Tensor,
    target: &Tensor,
    value: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    slopes: impl Fn(&Tensor, &Tensor) -> Result<[Tensor; 2]> + Send + Sync + 'static,
) -> Result<Tensor> {
    same_type(name, inp.dtype(), target.dtype())?;
    in_range(name, [inp])?;
    if inp.shape() != target.shape() {
        let (lhs, rhs, op) = (inp.shape().clone(), target.shape().clone(), name);
        return Err(Error::ShapeMismatchBinaryOp { lhs, rhs, op }.bt());
    }
    let dtype = sum_type(inp.dtype());
    let wide = move |tensor: &Tensor| tensor.detach().to_dtype(dtype);
    let count = inp.elem_count().max(1) as f64;
    let loss = (value(&wide(inp)?, &wide(target)?)?.sum_all()? / count)?;
    record(name, [inp, target], loss, move |given: Backward<2>| {
        let [inp, target] = &given.inputs;
        let factor = (&given.gradient / count)?;
        let [of_inp, of_target] = slopes(&wide(inp)?, &wide(target)?)?;
        let gradient = |slope: Tensor| slope.broadcast_mul(&factor)?.to_dtype(inp.dtype());
        let [needs_inp, needs_target] = given.needs;
        Ok([
            needs_inp.then(|| gradient(of_inp)).transpose()?,
            needs_target.then(|| gradient(of_target)).transpose()?,
        ])
    })
}
