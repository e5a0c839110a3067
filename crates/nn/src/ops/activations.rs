use candle_core::{Result, Tensor};

use super::curves::Curve;
use super::elementwise::apply;

/// x · sigmoid(x), as [`candle_nn::ops::silu`].
///
/// It keeps its input.
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
/// # Errors
/// As [`silu`].
pub fn sigmoid(xs: &Tensor) -> Result<Tensor> {
    apply(Curve::Sigmoid, xs)
}

/// (x + 3) / 6 between 0 and 1, as [`candle_nn::ops::hard_sigmoid`].
///
/// It keeps its input.
///
/// # Errors
/// As [`silu`].
pub fn hard_sigmoid(xs: &Tensor) -> Result<Tensor> {
    apply(Curve::HardSigmoid, xs)
}

/// x · tanh(ln(1 + e^x)), as [`candle_nn::ops::mish`], but finite also where candle's e^x is not.
///
/// It keeps its input.
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
/// # Errors
/// As [`silu`].
pub fn leaky_relu(xs: &Tensor, negative_slope: f64) -> Result<Tensor> {
    apply(Curve::LeakyRelu(negative_slope), xs)
}

/// `gamma` · x, or `gamma` · `alpha` · (e^x − 1) where x is not positive, as [`candle_nn::ops::selu`], which accepts f32 only.
///
/// It keeps its input.
///
/// # Errors
/// As [`silu`].
pub fn selu(xs: &Tensor, alpha: f32, gamma: f32) -> Result<Tensor> {
    let (alpha, gamma) = (alpha.into(), gamma.into());
    apply(Curve::Selu { alpha, gamma }, xs)
}
