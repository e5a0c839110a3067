use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{D, DType, Device, Error, Result, Tensor, bail};

use super::Nf4;
use crate::bias::{add_to_rows, sum_of_rows};
use crate::graph::record_lean;
use crate::kernel::{dense, in_range, multiply, product, runs_on, sum_type};

/// Bytes of a weight that are dequantized at a time on CUDA, and of sums of gradients that are wider than these.
const SLICE: usize = 32 << 20;
/// Of the columns that are dequantized at a time there is a multiple of this many, which is one of each format's blocks.
const BLOCK: usize = 256;

/// A weight (out, in) that is not trained, and of which some rows are dequantized at a time. A clone shares its memory.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::quantized::{FrozenWeight, GgmlDType, QTensor};
///
/// let weight = Tensor::randn(0f32, 1., (64, 32), &Device::Cpu)?; // [out, in]
/// let weight = FrozenWeight::from(QTensor::quantize(&weight, GgmlDType::Q8_0)?);
/// assert_eq!(weight.dims()?, (64, 32));
/// assert_eq!(weight.bytes(), 64 * 34); // 32 numbers of 8 bits and a scale of 16 bits in each row
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FrozenWeight {
    /// In a format of ggml, as in GGUF files.
    Ggml(Arc<QTensor>),
    /// In NF4.
    Nf4(Nf4),
    /// As it is.
    Tensor(Tensor),
}

impl From<QTensor> for FrozenWeight {
    fn from(weight: QTensor) -> Self {
        Self::Ggml(Arc::new(weight))
    }
}

impl From<Arc<QTensor>> for FrozenWeight {
    fn from(weight: Arc<QTensor>) -> Self {
        Self::Ggml(weight)
    }
}

impl From<Nf4> for FrozenWeight {
    fn from(weight: Nf4) -> Self {
        Self::Nf4(weight)
    }
}

impl From<Tensor> for FrozenWeight {
    fn from(weight: Tensor) -> Self {
        Self::Tensor(weight.detach())
    }
}

impl FrozenWeight {
    /// Rows and columns: (out, in).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::quantized::FrozenWeight;
    /// let weight = FrozenWeight::from(Tensor::ones((64, 32), DType::BF16, &Device::Cpu)?);
    /// assert_eq!(weight.dims()?, (64, 32));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If it is not a matrix.
    pub fn dims(&self) -> Result<(usize, usize)> {
        match self {
            Self::Ggml(weight) => weight.shape().dims2(),
            Self::Nf4(weight) => Ok(weight.dims()),
            Self::Tensor(weight) => weight.dims2(),
        }
    }

    /// Where it lies.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::quantized::FrozenWeight;
    /// let weight = FrozenWeight::from(Tensor::ones((64, 32), DType::BF16, &Device::Cpu)?);
    /// assert!(weight.device().is_cpu());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn device(&self) -> Device {
        match self {
            Self::Ggml(weight) => weight.device(),
            Self::Nf4(weight) => weight.device().clone(),
            Self::Tensor(weight) => weight.device().clone(),
        }
    }

    /// The bytes that it takes on its device.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::quantized::FrozenWeight;
    /// let weight = FrozenWeight::from(Tensor::ones((64, 32), DType::BF16, &Device::Cpu)?);
    /// assert_eq!(weight.bytes(), 64 * 32 * 2);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn bytes(&self) -> usize {
        let of = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        match self {
            Self::Ggml(weight) => weight.storage_size_in_bytes(),
            Self::Nf4(weight) => weight.tensors().into_iter().map(of).sum(),
            Self::Tensor(weight) => of(weight),
        }
    }

    /// The whole weight (out, in) in f32, on its device.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::quantized::FrozenWeight;
    /// let weight = FrozenWeight::from(Tensor::ones((64, 32), DType::BF16, &Device::Cpu)?);
    /// assert_eq!(weight.dequantize()?.dtype(), DType::F32);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If it is not a matrix, or memory runs out.
    pub fn dequantize(&self) -> Result<Tensor> {
        self.rows((0, self.dims()?.0), DType::F32)
    }

    /// The rows with these numbers, of any shape (…), as (…, in): a table of embeddings. In f32, or the type of a tensor.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::quantized::{FrozenWeight, GgmlDType, QTensor};
    ///
    /// let table = Tensor::arange(0f32, 64., &Device::Cpu)?.reshape((64, 1))?.broadcast_as((64, 32))?;
    /// let table = FrozenWeight::from(QTensor::quantize(&table.contiguous()?, GgmlDType::Q8_0)?); // [tokens, width]
    /// let tokens = Tensor::new(&[[3u32, 0]], &Device::Cpu)?;
    /// let found = table.embedding(&tokens)?;
    /// assert_eq!(found.dims(), [1, 2, 32]);
    /// assert!((found.max_all()?.to_scalar::<f32>()? - 3.).abs() < 0.01);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a number is out of range; on a GPU, where nothing waits for it, its row is NaN. And for a weight in NF4, which has no such kernel.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        let device = self.device();
        if device.is_cpu() {
            return self.taken(ids);
        }
        // candle's kernels read whatever lies behind the last row, or end the context.
        let ids = ids.to_device(&device)?.to_dtype(DType::I64)?;
        let is_row = (ids.ge(0i64)? * ids.lt(self.dims()?.0 as i64)?)?;
        let safe = is_row.where_cond(&ids, &ids.zeros_like()?)?;
        let rows = self.taken(&safe.to_dtype(DType::U32)?)?;
        let none = Tensor::new(f32::NAN, &device)?.to_dtype(rows.dtype())?;
        let is_row = is_row.unsqueeze(D::Minus1)?.broadcast_as(rows.shape())?;
        is_row.where_cond(&rows, &none.broadcast_as(rows.shape())?)
    }

    fn taken(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::Ggml(weight) => weight.embedding(ids),
            Self::Tensor(weight) => {
                let rows = weight.index_select(&ids.flatten_all()?, 0)?;
                rows.reshape([ids.dims(), &[weight.dim(1)?]].concat())
            }
            Self::Nf4(_) => bail!("embedding: the table is in NF4: take another type for it"),
        }
    }

    /// y of x (…, in), given how it is computed, and the gradients of x and of a bias (out).
    pub(super) fn apply(
        &self,
        name: &'static str,
        xs: &Tensor,
        bias: Option<&Tensor>,
        product: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let (device, (rows, _)) = (self.device(), self.dims()?);
        if !device.same_device(xs.device()) {
            let (here, there) = (device.location(), xs.device().location());
            bail!("{name}: the weight is on {here:?}, the input on {there:?}");
        }
        if xs.elem_count() == 0 || rows == 0 {
            let shape = xs.shape();
            bail!("{name}: an empty input {shape:?} or weight of {rows} rows");
        }
        match xs.dtype() {
            DType::F32 | DType::F64 | DType::F16 | DType::BF16 => in_range(name, [xs])?,
            dtype => return Err(Error::UnsupportedDTypeForOp(dtype, name).bt()),
        }
        let ys = product(&dense(name, &xs.detach())?)?;
        let (weight, shape, dtype) = (self.clone(), xs.shape().clone(), xs.dtype());
        let dx = move |dys: &Tensor| weight.gradient(dys)?.to_dtype(dtype)?.reshape(&shape);
        let flat = move |dys: &Tensor| dense(name, dys)?.flatten_to(D::Minus2);
        match bias {
            None => record_lean(name, [xs], ys, move |dys, _| Ok([Some(dx(&flat(&dys)?)?)])),
            Some(bias) => {
                let ys = add_to_rows(ys, bias)?;
                record_lean(name, [xs, bias], ys, move |dys, [of_x, of_bias]| {
                    let dys = flat(&dys)?;
                    let dxs = of_x.then(|| dx(&dys)).transpose()?;
                    let dbias = of_bias.then(|| sum_of_rows(&dys)).transpose()?;
                    Ok([dxs, dbias])
                })
            }
        }
    }

    /// x · Wᵀ with the dequantized weight, some rows of it at a time.
    pub(super) fn product(&self, xs: &Tensor) -> Result<Tensor> {
        let ((rows, _), device) = (self.dims()?, xs.device());
        // As in the layers of numbers: candle's products of 16 bits on the CPU add up in them.
        let dtype = match device.is_cpu() {
            true => sum_type(xs.dtype()),
            false => xs.dtype(),
        };
        let flat = xs.flatten_to(D::Minus2)?.to_dtype(dtype)?;
        let part = |part| self.rows(part, dtype)?.t();
        let ys = by_columns(&flat, rows, &self.parts(dtype)?, part)?;
        let mut dims = xs.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = rows;
        }
        ys.to_dtype(xs.dtype())?.reshape(dims)
    }

    /// dy · W of (samples, out), some of the weight at a time: in the type of sums, or of dy where that is rounded once.
    fn gradient(&self, dys: &Tensor) -> Result<Tensor> {
        let wide = sum_type(dys.dtype());
        // A weight of 16 bits is not rounded to others, and where candle multiplies, sums would be narrow.
        let is_exact = !matches!(self, Self::Tensor(weight) if weight.dtype() != dys.dtype());
        let has_products = dys.device().is_cuda() && runs_on(dys.device());
        let dtype = match is_exact && has_products {
            true => dys.dtype(),
            false => wide,
        };
        let (rows, width) = self.dims()?;
        if dtype == dys.dtype() && self.has_columns() {
            let len = SLICE / (rows * dtype.size_in_bytes()).max(1) / BLOCK * BLOCK;
            let part = |columns| self.part([(0, rows), columns], dtype);
            return by_columns(dys, width, &parts(width, len.max(BLOCK)), part);
        }
        let (parts, tokens) = (self.parts(dtype)?, dys.dim(0)?);
        if parts.is_empty() {
            bail!("qmatmul: a weight without rows")
        }
        let of_sum = match parts.len() == 1 && dtype == dys.dtype() {
            true => dtype,
            false => wide,
        };
        let sum_of = |dys: &Tensor| {
            let (dys, mut sum) = (dys.to_dtype(dtype)?, None);
            for &(first, len) in &parts {
                let (part, weight) = (dys.narrow(1, first, len)?, self.rows((first, len), dtype)?);
                match &sum {
                    None => sum = Some(product(1., &part, &weight, of_sum)?),
                    Some(sum) => multiply(sum, true, &part, &weight)?,
                }
            }
            sum.map_or_else(|| bail!("qmatmul: a weight without rows"), Ok)
        };
        // Sums that are wider than their result, of some tokens at a time: a weight is dequantized again for each of these.
        let most = (SLICE / (width * of_sum.size_in_bytes()).max(1)).max(1);
        if of_sum == dys.dtype() || !has_products || tokens <= most {
            return sum_of(dys);
        }
        let all = Tensor::zeros((tokens, width), dys.dtype(), dys.device())?;
        for first in (0..tokens).step_by(most) {
            let sum = sum_of(&dys.narrow(0, first, most.min(tokens - first))?)?;
            all.slice_set(&sum.to_dtype(dys.dtype())?, 0, first)?;
        }
        Ok(all)
    }

    /// The first row and the number of rows of each part that is dequantized at once.
    pub(crate) fn parts(&self, dtype: DType) -> Result<Vec<(usize, usize)>> {
        let ((rows, width), device) = (self.dims()?, self.device());
        // On the CPU few enough for its caches, on CUDA most weights of a model at once, since each part takes launches.
        let bytes = if device.is_cuda() { SLICE } else { 4 << 20 };
        let len = match self.has_rows() {
            true => (bytes / (width * dtype.size_in_bytes()).max(1)).max(1),
            false => rows.max(1),
        };
        Ok(parts(rows, len))
    }

    /// Whether single rows can be dequantized, and their products be written to a part of a tensor.
    fn has_rows(&self) -> bool {
        let device = self.device();
        let has_kernel = match self {
            Self::Ggml(weight) => !matches!(weight.dtype(), GgmlDType::Q8_1 | GgmlDType::Q8K),
            _ => true,
        };
        runs_on(&device) && (has_kernel || device.is_cpu())
    }

    /// Whether single columns can be dequantized too, which a kernel does.
    fn has_columns(&self) -> bool {
        use GgmlDType::{Q4_0, Q4K, Q5K, Q6K, Q8_0};
        let has_kernel = match self {
            Self::Ggml(weight) => matches!(weight.dtype(), Q4_0 | Q8_0 | Q4K | Q5K | Q6K),
            _ => true,
        };
        has_kernel && self.device().is_cuda() && self.has_rows()
    }

    /// So many rows from a number on.
    pub(crate) fn rows(&self, rows: (usize, usize), dtype: DType) -> Result<Tensor> {
        self.part([rows, (0, self.dims()?.1)], dtype)
    }

    /// Some rows and columns, of each the first one and how many. All columns, unless [`has_columns`](Self::has_columns).
    fn part(&self, [rows, columns]: [(usize, usize); 2], dtype: DType) -> Result<Tensor> {
        let (first, len) = rows;
        let part = match self {
            Self::Ggml(weight) if !self.has_rows() => weight.dequantize(&weight.device()),
            #[cfg(feature = "cuda")]
            Self::Nf4(weight) if weight.device().is_cuda() => {
                return crate::kernel::cuda::nf4_part(weight, [rows, columns], dtype);
            }
            Self::Nf4(weight) => weight.rows(first, len),
            Self::Tensor(weight) => weight
                .narrow(0, first, len)?
                .narrow(1, columns.0, columns.1),
            Self::Ggml(weight) => {
                #[cfg(feature = "cuda")]
                if weight.device().is_cuda()
                    && let Some(part) =
                        crate::kernel::cuda::ggml_part(weight, [rows, columns], dtype)?
                {
                    return Ok(part);
                }
                let numbers = (first as u32, (first + len) as u32);
                weight.embedding(&Tensor::arange(numbers.0, numbers.1, &weight.device())?)
            }
        };
        part?.to_dtype(dtype)
    }
}

/// Parts of so many rows or columns: the first one and the number of each.
fn parts(all: usize, len: usize) -> Vec<(usize, usize)> {
    let firsts = (0..all).step_by(len);
    firsts.map(|first| (first, len.min(all - first))).collect()
}

/// x times each part of a matrix of `width` columns, given some of the columns.
fn by_columns(
    xs: &Tensor,
    width: usize,
    parts: &[(usize, usize)],
    part: impl Fn((usize, usize)) -> Result<Tensor>,
) -> Result<Tensor> {
    if let [whole] = parts {
        return product(1., xs, &part(*whole)?, xs.dtype());
    }
    let ys = Tensor::zeros((xs.dim(0)?, width), xs.dtype(), xs.device())?;
    for &(first, len) in parts {
        let part = part((first, len))?;
        multiply(&ys.narrow(1, first, len)?, false, xs, &part)?;
    }
    Ok(ys)
}
