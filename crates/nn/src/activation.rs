//! Activation functions of [`candle_nn::activation`], each as one operation.
//!
//! The graph keeps no intermediate results: the backward pass computes the derivative from the input. f16 and bf16 are computed in f32
//! and rounded once. [`Activation`] deserializes from the names that candle's does, such as `silu` and `gelu_pytorch_tanh` in the
//! configurations of Hugging Face's models.

use candle_core::{Module, Result, Tensor, bail};
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use crate::bounds::{at_least, at_most};
use crate::graph::{Backward, record};
use crate::kernel::{in_range, sum_type};
use crate::ops;
use crate::ops::curves::Curve;
use crate::ops::elementwise::apply;

/// An activation function, with the names and the values of [`candle_nn::Activation`].
///
/// It keeps its input. Where a function has a kink, the derivative is that of candle. f16 and bf16 are computed in f32.
///
/// The errors of `forward` are those of [`silu`](ops::silu).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::{Activation, Module};
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[-1f32, 3., 9.], &Device::Cpu)?;
/// assert_eq!(Activation::Relu.forward(&x)?.to_vec1::<f32>()?, [0., 3., 9.]);
/// assert_eq!(Activation::Relu6.forward(&x)?.to_vec1::<f32>()?, [0., 3., 6.]);
///
/// // From a model's configuration.
/// let named: Activation = serde_json::from_str("\"gelu_pytorch_tanh\"").expect("a name");
/// assert_eq!(named, Activation::GeluPytorchTanh);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// x · Φ(x), with the distribution function of the normal distribution (Hendrycks and Gimpel 2016, arXiv 1606.08415).
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

/// A rectifier with a trained slope for negative numbers (He et al. 2015, arXiv 1502.01852), one for all or one for each channel, as
/// [`candle_nn::PReLU`]. The derivative at zero is the mean of both slopes.
///
/// It keeps its output.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Module, VarBuilder, VarMap, prelu};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let x = Tensor::new(&[[-4f32, 8.]], &Device::Cpu)?;
/// let y = prelu(None, vb)?.forward(&x)?; // the slope begins with 0.25
/// assert_eq!(y.to_vec2::<f32>()?, [[-1., 8.]]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PReLU {
    weight: Tensor,
    is_scalar: bool,
}

impl PReLU {
    /// A layer with these slopes: one number if `is_scalar`, or one for each channel, which is dimension 1 of the input.
    /// `forward` fails for an input with another number of channels.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Module, PReLU};
    ///
    /// let slopes = Tensor::new(&[0.5f32, 0.25], &Device::Cpu)?; // of two channels
    /// let x = Tensor::new(&[[-2f32, -4.], [1., 3.]], &Device::Cpu)?; // [samples, channels]
    /// let y = PReLU::new(slopes, false).forward(&x)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[-1., -1.], [1., 3.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn new(weight: Tensor, is_scalar: bool) -> Self {
        Self { weight, is_scalar }
    }

    /// The slopes.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom_nn::PReLU;
    /// # let slopes = Tensor::new(&[0.5f32, 0.25], &Device::Cpu)?;
    /// let layer = PReLU::new(slopes, false);
    /// assert_eq!(layer.weight().dims(), [2]); // of two channels
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Whether all channels have the same slope.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom_nn::PReLU;
    /// # let slopes = Tensor::new(&[0.5f32, 0.25], &Device::Cpu)?;
    /// let layer = PReLU::new(slopes, false);
    /// assert!(!layer.is_scalar());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn is_scalar(&self) -> bool {
        self.is_scalar
    }

    /// The shape in which the slopes are broadcast to an input.
    fn broadcast(&self, xs: &Tensor) -> Result<Vec<usize>> {
        let mut dims = vec![1; xs.rank()];
        if self.is_scalar {
            return Ok(dims);
        }
        if xs.rank() < 2 || xs.shape() == self.weight.shape() {
            return Ok(self.weight.dims().to_vec());
        }
        let (channels, slopes) = (xs.dim(1)?, self.weight.elem_count());
        if slopes != channels {
            bail!(
                "prelu: the input {:?} has {channels} channels, there are {slopes} slopes",
                xs.shape()
            );
        }
        dims[1] = channels;
        Ok(dims)
    }
}

impl From<candle_nn::PReLU> for PReLU {
    fn from(layer: candle_nn::PReLU) -> Self {
        Self::new(layer.weight().clone(), layer.is_scalar())
    }
}

impl Module for PReLU {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        in_range("prelu", [xs])?;
        let dims = self.broadcast(xs)?;
        let ys = {
            let (xs, weight) = (xs.detach(), self.weight.detach().reshape(dims.as_slice())?);
            let below = at_most(&xs, 0.)?.broadcast_mul(&weight)?;
            at_least(&xs, 0.)? + below
        }?;
        let backward = move |given: Backward<2>| {
            let [xs, weight] = &given.inputs;
            let dys = &given.gradient;
            let [needs_xs, needs_weight] = given.needs;
            let dxs = needs_xs.then(|| {
                let slopes = weight.reshape(dims.as_slice())?;
                // 1 above zero, 0 below, 1/2 at zero.
                let above = ((xs.sign()? + 1.)? * 0.5)?;
                let below = above.affine(-1., 1.)?.broadcast_mul(&slopes)?;
                dys * (above + below)?
            });
            let dweight = needs_weight.then(|| {
                let products = (at_most(xs, 0.)? * dys)?;
                let others = dims.iter().enumerate().filter(|(_, len)| **len == 1);
                let others = others.map(|(dim, _)| dim).collect::<Vec<_>>();
                let wide = products.to_dtype(sum_type(products.dtype()))?;
                let sums = wide.sum(others)?.reshape(weight.shape())?;
                sums.to_dtype(weight.dtype())
            });
            Ok([dxs.transpose()?, dweight.transpose()?])
        };
        record("prelu", [xs, &self.weight], ys, backward)
    }
}

/// Makes a [`PReLU`] with slopes of 0.25, named `weight`: one for each of `num_channels`, or one for all.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{VarBuilder, VarMap, prelu};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let layer = prelu(Some(3), vb)?;
/// assert_eq!(layer.weight().to_vec1::<f32>()?, [0.25; 3]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn prelu(num_channels: Option<usize>, vs: VarBuilder) -> Result<PReLU> {
    Ok(candle_nn::prelu(num_channels, vs)?.into())
}
