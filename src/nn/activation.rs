//! Activation functions of [`candle_nn::activation`], each as one operation.

use candle_core::{Module, Result, Tensor};
use serde::{Deserialize, Serialize};

pub use super::prelu::{PReLU, prelu};
use crate::nn::ops;
use crate::nn::ops::curves::Curve;
use crate::nn::ops::elementwise::apply;

/// An activation function, with the names and the values of [`candle_nn::Activation`].
///
/// It keeps its output. Where a function has a kink, the derivative is that of candle.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, Default)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // the names say it
pub enum Activation {
    #[default]
    #[serde(alias = "gelu")]
    Gelu,
    #[serde(alias = "gelu_new")]
    NewGelu,
    Relu,
    Relu2,
    Relu6,
    Silu,
    Sigmoid,
    HardSigmoid,
    Swiglu,
    Swish,
    Mish,
    HardSwish,
    Elu(f64),
    LeakyRelu(f64),
    #[serde(alias = "gelu_pytorch_tanh")]
    GeluPytorchTanh,
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
