//! Activation functions of [`candle_nn::activation`], each as one operation.

use candle_core::{Module, Result, Tensor};
use serde::{Deserialize, Serialize};

pub use super::prelu::{PReLU, prelu};
use crate::ops;
use crate::ops::curves::Curve;
use crate::ops::elementwise::apply;

/// An activation function, with the names and the values of [`candle_nn::Activation`].
///
/// It keeps its input. Where a function has a kink, the derivative is that of candle. f16 and bf16 are computed in f32.
///
/// The errors of `forward` are those of [`silu`](ops::silu).
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// x · Φ(x), with the distribution function of the normal distribution.
    #[default]
    #[serde(alias = "gelu")]
    Gelu,
    /// GELU approximated by tanh.
    #[serde(alias = "gelu_new")]
    NewGelu,
    /// max(x, 0).
    Relu,
    /// max(x, 0)².
    Relu2,
    /// x between 0 and 6.
    Relu6,
    /// x · sigmoid(x).
    Silu,
    /// 1 / (1 + e^−x).
    Sigmoid,
    /// (x + 3) / 6 between 0 and 1.
    HardSigmoid,
    /// silu(a) · b of the halves of the last dimension: [`swiglu`](ops::swiglu).
    Swiglu,
    /// The same as `Silu`.
    Swish,
    /// x · tanh(ln(1 + e^x)).
    Mish,
    /// x · `HardSigmoid`.
    HardSwish,
    /// x, or α · (e^x − 1) where x is not positive.
    Elu(f64),
    /// x, or a multiple of x where x is negative.
    LeakyRelu(f64),
    /// The same as `NewGelu`.
    #[serde(alias = "gelu_pytorch_tanh")]
    GeluPytorchTanh,
}

impl From<candle_nn::Activation> for Activation {
    fn from(activation: candle_nn::Activation) -> Self {
        use candle_nn::Activation as Candle;
        match activation {
            Candle::Gelu => Self::Gelu,
            Candle::NewGelu => Self::NewGelu,
            Candle::Relu => Self::Relu,
            Candle::Relu2 => Self::Relu2,
            Candle::Relu6 => Self::Relu6,
            Candle::Silu => Self::Silu,
            Candle::Sigmoid => Self::Sigmoid,
            Candle::HardSigmoid => Self::HardSigmoid,
            Candle::Swiglu => Self::Swiglu,
            Candle::Swish => Self::Swish,
            Candle::Mish => Self::Mish,
            Candle::HardSwish => Self::HardSwish,
            Candle::GeluPytorchTanh => Self::GeluPytorchTanh,
            Candle::Elu(alpha) => Self::Elu(alpha),
            Candle::LeakyRelu(slope) => Self::LeakyRelu(slope),
        }
    }
}

impl Module for Activation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let curve = match *self {
            Self::Gelu => Curve::GeluErf,
            Self::NewGelu | Self::GeluPytorchTanh => Curve::Gelu,
            Self::Relu => Curve::Relu,
            Self::Relu2 => Curve::Relu2,
            Self::Relu6 => Curve::Relu6,
            Self::Silu | Self::Swish => Curve::Silu,
            Self::Sigmoid => Curve::Sigmoid,
            Self::HardSigmoid => Curve::HardSigmoid,
            Self::Swiglu => return ops::swiglu(xs),
            Self::Mish => Curve::Mish,
            Self::HardSwish => Curve::HardSwish,
            Self::Elu(alpha) => Curve::Elu(alpha),
            Self::LeakyRelu(slope) => Curve::LeakyRelu(slope),
        };
        apply(curve, xs)
    }
}
