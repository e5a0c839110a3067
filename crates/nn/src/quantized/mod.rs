//! Quantized matrix products for training what comes before them. Everything else is candle's.
//!
//! A quantized weight is frozen: it gets no gradient. What comes before it, such as a LoRA adapter or a norm, is trained through the product
//! with the dequantized weight. Both passes dequantize a few MiB of the weight at a time, 32 on CUDA, so they take little memory; [`QMatMul`]
//! names two types that are an exception on a GPU. There a kernel reads Q4_0, Q8_0, Q4_K, Q5_K, Q6_K and NF4 in one launch and writes the type of x;
//! others go through candle's embedding, in f32.
//!
//! [`FrozenLinear`] is the layer to put an adapter on, [`QMatMul`] takes the place of candle's.

mod linear;
mod nf4;
mod weight;

use std::sync::Arc;

pub use candle_core::quantized::*;
use candle_core::{Module, Result, Tensor, bail, quantized};

use super::seed::is_seeded;

pub use linear::FrozenLinear;
pub use nf4::Nf4;
pub use weight::FrozenWeight;

const NAME: &str = "qmatmul";

/// y = x · Wᵀ with a frozen quantized weight, as [`candle_core::quantized::QMatMul`], for training what comes before it.
///
/// Where x is in the graph, and within [`seeded`](crate::seeded), as in the closures of candle-headroom's trainers and in a
/// [`recompute`](crate::recompute()) region, the product is that with the dequantized weight, in the type of x (on the CPU in f32), and
/// so is the gradient of x, with sums in f32. Some rows of the weight are dequantized at a time, also of one in f16, at most 4 MiB (32 on CUDA) or
/// one row; on a GPU all of a Q8_1 or Q8K weight, for which candle has no kernel that does so, and on Metal all of any.
///
/// Elsewhere, as where a model generates text, the forward pass is candle's. It rounds x to 8 bits, and on CUDA chooses a kernel by the number
/// of rows, so that a row's result would depend on the others of its batch.
///
/// It keeps neither its input nor its output.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom_nn::Module;
/// use candle_headroom_nn::quantized::{GgmlDType, QMatMul, QTensor};
///
/// let weight = Tensor::randn(0f32, 1., (64, 32), &Device::Cpu)?; // [out, in]
/// let frozen = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?)?;
/// let x = Var::randn(0f32, 1., (4, 32), &Device::Cpu)?; // [samples, in]
/// let y = frozen.forward(&x)?;
/// assert_eq!(y.dims(), [4, 64]);
/// assert!(y.sum_all()?.backward()?.get(&x).is_some());
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum QMatMul {
    /// A quantized weight (out, in).
    QTensor(Arc<QTensor>),
    /// A weight that was dequantized at the start.
    Tensor(Tensor),
    /// A weight that was dequantized to f16 at the start.
    TensorF16(Tensor),
}

impl From<quantized::QMatMul> for QMatMul {
    fn from(weight: quantized::QMatMul) -> Self {
        match weight {
            quantized::QMatMul::QTensor(weight) => Self::QTensor(weight),
            quantized::QMatMul::Tensor(weight) => Self::Tensor(weight),
            quantized::QMatMul::TensorF16(weight) => Self::TensorF16(weight),
        }
    }
}

impl From<QMatMul> for quantized::QMatMul {
    fn from(weight: QMatMul) -> Self {
        match weight {
            QMatMul::QTensor(weight) => Self::QTensor(weight),
            QMatMul::Tensor(weight) => Self::Tensor(weight),
            QMatMul::TensorF16(weight) => Self::TensorF16(weight),
        }
    }
}

impl QMatMul {
    /// Takes a weight (out, in). candle dequantizes f32, f16 and bf16 at once, and all types where `CANDLE_DEQUANTIZE_ALL` or
    /// `CANDLE_DEQUANTIZE_ALL_F16` is set.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::Module;
    /// use candle_headroom_nn::quantized::{GgmlDType, QMatMul, QTensor};
    ///
    /// let weight = Tensor::ones((64, 32), DType::F32, &Device::Cpu)?; // [out, in]
    /// let shared = Arc::new(QTensor::quantize(&weight, GgmlDType::Q8_0)?);
    /// let layers = [QMatMul::from_arc(shared.clone())?, QMatMul::from_arc(shared)?]; // one weight
    /// let x = Tensor::ones((1, 32), DType::F32, &Device::Cpu)?;
    /// let y = layers[0].forward(&x)?.flatten_all()?.to_vec1::<f32>()?;
    /// assert!((y[0] - 32.).abs() < 0.1);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If it cannot be dequantized.
    pub fn from_arc(qtensor: Arc<QTensor>) -> Result<Self> {
        Ok(quantized::QMatMul::from_arc(qtensor)?.into())
    }

    /// [`from_arc`](Self::from_arc) for a weight that nobody else uses.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::quantized::{GgmlDType, QMatMul, QTensor};
    ///
    /// let weight = Tensor::ones((64, 32), DType::F32, &Device::Cpu)?; // [out, in]
    /// let exact = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::F32)?)?;
    /// assert!(matches!(exact, QMatMul::Tensor(_))); // f32 is dequantized at once
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If it cannot be dequantized.
    pub fn from_qtensor(qtensor: QTensor) -> Result<Self> {
        Self::from_arc(Arc::new(qtensor))
    }

    /// The whole weight (out, in) as f16.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::quantized::{GgmlDType, QMatMul, QTensor};
    /// # let weight = Tensor::ones((64, 32), DType::F32, &Device::Cpu)?; // [out, in]
    /// let layer = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?)?;
    /// let whole = layer.dequantize_f16()?;
    /// assert_eq!((whole.dims(), whole.dtype()), (&[64, 32][..], DType::F16));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If it cannot be dequantized.
    pub fn dequantize_f16(&self) -> Result<Tensor> {
        self.candles().dequantize_f16()
    }

    /// The product of x (…, in) in f16, with the whole weight dequantized for it; the result (…, out) has the type of x.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::quantized::{GgmlDType, QMatMul, QTensor};
    /// # let weight = Tensor::ones((64, 32), DType::F32, &Device::Cpu)?; // [out, in]
    /// let layer = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?)?;
    /// let x = Tensor::ones((4, 32), DType::F32, &Device::Cpu)?; // [samples, in]
    /// let y = layer.forward_via_f16(&x)?;
    /// assert_eq!((y.dims(), y.dtype()), (&[4, 64][..], DType::F32));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shapes do not match or the weight is on another device.
    pub fn forward_via_f16(&self, xs: &Tensor) -> Result<Tensor> {
        self.multiply(xs, |weight, xs| weight.forward_via_f16(xs))
    }

    /// A mixture of experts on CUDA, without a backward pass, as candle's: for a weight (experts, out, in), an input (tokens, 1 or
    /// chosen experts, in) and the numbers of the chosen experts (tokens, chosen experts), the products (tokens, chosen experts, out).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::quantized::{GgmlDType, QMatMul, QTensor};
    /// # let weight = Tensor::ones((64, 32), DType::F32, &Device::Cpu)?; // [out, in]
    /// let layer = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?)?;
    /// let x = Tensor::ones((1, 1, 32), DType::F32, &Device::Cpu)?;
    /// let ids = Tensor::zeros((1, 1), DType::U32, &Device::Cpu)?;
    /// let error = layer.indexed_moe_forward(&x, &ids).unwrap_err(); // of the CPU
    /// assert!(error.to_string().contains("needs a quantized weight on CUDA"));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// The numbers of experts are not compared with the weight, because that would wait for the device.
    ///
    /// # Errors
    /// If the weight is not quantized or not on CUDA, or for shapes that do not match.
    pub fn indexed_moe_forward(&self, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let weight = match self {
            Self::QTensor(weight) if weight.device().is_cuda() && x.device().is_cuda() => weight,
            _ => bail!("indexed_moe_forward needs a quantized weight on CUDA"),
        };
        // candle's kernel takes the shapes as they are, and both tensors from the beginning of their buffers in one piece.
        let ((_, _, width), (tokens, each, inputs)) = (weight.shape().dims3()?, x.dims3()?);
        let (id_tokens, chosen) = ids.dims2()?;
        if inputs != width || tokens != id_tokens || (each != 1 && each != chosen) {
            let (weight, x, ids) = (weight.shape(), x.shape(), ids.shape());
            bail!(
                "indexed_moe_forward: weight {weight:?}, input {x:?} and ids {ids:?} do not match"
            );
        }
        let whole = |tensor: &Tensor| match tensor.is_contiguous() {
            true if tensor.layout().start_offset() == 0 => Ok(tensor.clone()),
            _ => tensor.force_contiguous(),
        };
        weight.indexed_moe_forward(&whole(x)?, &whole(ids)?)
    }

    /// The rows of the weight with these numbers, of any shape; the result has one more dimension, of the width of a row.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::quantized::{GgmlDType, QMatMul, QTensor};
    /// # let weight = Tensor::ones((64, 32), DType::F32, &Device::Cpu)?; // [out, in]
    /// let layer = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?)?;
    /// let ids = Tensor::new(&[3u32, 0], &Device::Cpu)?;
    /// assert_eq!(layer.embedding(&ids)?.dims(), [2, 32]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        self.candles().embedding(ids)
    }

    fn candles(&self) -> quantized::QMatMul {
        self.clone().into()
    }

    fn frozen(&self) -> FrozenWeight {
        match self {
            Self::QTensor(weight) => weight.clone().into(),
            Self::Tensor(weight) | Self::TensorF16(weight) => weight.clone().into(),
        }
    }

    fn multiply(
        &self,
        xs: &Tensor,
        product: impl FnOnce(&quantized::QMatMul, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let product = |xs: &Tensor| product(&self.candles(), xs);
        self.frozen().apply(NAME, xs, None, product)
    }
}

impl Module for QMatMul {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::QTensor(weight) if xs.track_op() || is_seeded() => {
                let weight = FrozenWeight::from(weight.clone());
                weight.apply(NAME, xs, None, |xs| weight.product(xs))
            }
            _ => self.multiply(xs, |weight, xs| weight.forward(xs)),
        }
    }
}
