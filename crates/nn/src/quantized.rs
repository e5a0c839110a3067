//! Quantized matrix products for training what comes before them. Everything else is candle's.
//!
//! A quantized weight is frozen: it gets no gradient. What comes before it, such as a LoRA adapter or a norm, is trained through the product
//! with the dequantized weight. Both passes dequantize a few MiB of the weight at a time, 64 on CUDA, so they take little memory; [`QMatMul`]
//! names two types that are an exception on a GPU.

use std::sync::Arc;

pub use candle_core::quantized::*;
use candle_core::{D, DType, Device, Module, Result, Tensor, bail, quantized};

use super::graph::{Backward, record};
use super::kernel::in_range;
use super::seed::is_seeded;

/// y = x · Wᵀ with a frozen quantized weight, as [`candle_core::quantized::QMatMul`], for training what comes before it.
///
/// Where x is in the graph, and within [`seeded`](crate::seeded), as in the closures of candle-headroom's trainers and in a
/// [`recompute`](crate::recompute()) region, the product is that with the dequantized weight, in the type of x (on the CPU in f32), and
/// so is the gradient of x, in f32. Some rows of the weight are dequantized at a time, also of one in f16, at most 4 MiB (64 on CUDA) or
/// one row; on a GPU all of a Q8_1 or Q8K weight, for which candle has no kernel that does so.
///
/// Elsewhere, as where a model generates text, the forward pass is candle's. It rounds x to 8 bits, and on CUDA chooses a kernel by the number
/// of rows, so that a row's result would depend on the others of its batch.
///
/// It keeps its output.
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

/// Elements that are dequantized at a time: on the CPU few enough for its caches, on CUDA most weights of a model at once, since each part takes
/// five launches and copies.
fn at_once(device: &Device) -> usize {
    if device.is_cuda() { 1 << 24 } else { 1 << 20 }
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

    /// The product of x (…, in) in f16, with the whole weight dequantized for it; the result (…, out) has the type of x. It keeps its
    /// output.
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

    fn multiply(
        &self,
        xs: &Tensor,
        product: impl FnOnce(&quantized::QMatMul, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let (device, rows) = match self {
            Self::QTensor(weight) => (weight.device(), weight.shape().dims2()?.0),
            Self::Tensor(weight) | Self::TensorF16(weight) => {
                (weight.device().clone(), weight.dim(0)?)
            }
        };
        if !device.same_device(xs.device()) {
            let (here, there) = (device.location(), xs.device().location());
            bail!("qmatmul: the weight is on {here:?}, the input on {there:?}");
        }
        if xs.elem_count() == 0 || rows == 0 {
            bail!(
                "qmatmul: an empty input {:?} or weight of {rows} rows",
                xs.shape()
            );
        }
        in_range("qmatmul", [xs])?;
        let ys = product(&self.candles(), &xs.detach().contiguous()?)?;
        let weight = self.clone();
        let backward = move |given: Backward<1>| {
            let [xs] = &given.inputs;
            let dys = given.gradient.contiguous()?.flatten_to(D::Minus2)?;
            let dxs = weight.product_with(&dys)?.to_dtype(xs.dtype())?;
            Ok([Some(dxs.reshape(xs.shape())?)])
        };
        record("qmatmul", [xs], ys, backward)
    }

    /// dy · W
    fn product_with(&self, dys: &Tensor) -> Result<Tensor> {
        match self {
            Self::QTensor(weight) => {
                let dys = dys.to_dtype(DType::F32)?;
                if !has_rows(weight) {
                    return dys.matmul(&weight.dequantize(dys.device())?);
                }
                by_rows(&dys, weight.shape().dims2()?, |first, len| {
                    rows_of(weight, first, len)
                })
            }
            Self::Tensor(weight) | Self::TensorF16(weight) => match weight.dtype() {
                // Gradients may be larger than the largest number of f16.
                DType::F16 | DType::BF16 => {
                    let rows = |first, len| weight.narrow(0, first, len)?.to_dtype(DType::F32);
                    by_rows(&dys.to_dtype(DType::F32)?, weight.dims2()?, rows)
                }
                dtype => dys.to_dtype(dtype)?.matmul(weight),
            },
        }
    }
}

impl Module for QMatMul {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::QTensor(weight) if xs.track_op() || is_seeded() => {
                self.multiply(xs, |_, xs| product(xs, weight))
            }
            _ => self.multiply(xs, |weight, xs| weight.forward(xs)),
        }
    }
}

/// Whether candle can dequantize single rows.
fn has_rows(weight: &QTensor) -> bool {
    weight.device().is_cpu() || !matches!(weight.dtype(), GgmlDType::Q8_1 | GgmlDType::Q8K)
}

/// Some rows of a weight, in f32.
fn rows_of(weight: &QTensor, first: usize, len: usize) -> Result<Tensor> {
    let numbers = (first as u32, (first + len) as u32);
    weight.embedding(&Tensor::arange(numbers.0, numbers.1, &weight.device())?)
}

/// x · Wᵀ with the dequantized weight, some rows of it at a time.
fn product(xs: &Tensor, weight: &QTensor) -> Result<Tensor> {
    let ((rows, width), device) = (weight.shape().dims2()?, xs.device());
    // As in the layers of numbers: candle's products of 16 bits on the CPU add up in them.
    let dtype = match device.is_cpu() && xs.dtype() != DType::F64 {
        true => DType::F32,
        false => xs.dtype(),
    };
    let flat = xs.flatten_to(D::Minus2)?.to_dtype(dtype)?;
    let part = |weight: Tensor| flat.matmul(&weight.to_dtype(dtype)?.t()?);
    let ys = match has_rows(weight) {
        false => part(weight.dequantize(device)?)?,
        true => {
            let parts = parts(rows, width, device);
            let parts = parts.map(|(first, len)| part(rows_of(weight, first, len)?));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            match &parts[..] {
                [whole] => whole.clone(),
                parts => Tensor::cat(parts, 1)?,
            }
        }
    };
    let mut dims = xs.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = rows;
    }
    ys.to_dtype(xs.dtype())?.reshape(dims)
}

/// The first row and the number of rows of each part of a weight that is dequantized at once.
fn parts(rows: usize, width: usize, device: &Device) -> impl Iterator<Item = (usize, usize)> {
    let len = (at_once(device) / width.max(1)).max(1);
    (0..rows)
        .step_by(len)
        .map(move |first| (first, len.min(rows - first)))
}

/// dy · W, with the f32 rows of W from a number on, as many as asked for.
fn by_rows(
    dys: &Tensor,
    (rows, width): (usize, usize),
    weight: impl Fn(usize, usize) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut sum: Option<Tensor> = None;
    for (first, len) in parts(rows, width, dys.device()) {
        let part = dys.narrow(1, first, len)?.contiguous()?;
        let product = part.matmul(&weight(first, len)?)?;
        sum = Some(match sum {
            Some(sum) => (sum + product)?,
            None => product,
        });
    }
    sum.map_or_else(
        || Tensor::zeros((dys.dim(0)?, width), DType::F32, dys.device()),
        Ok,
    )
}
