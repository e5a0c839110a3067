//! The embedding layer of [`mod@candle_nn::embedding`], with a gradient that is summed in f32.
//!
//! Values are candle's: rows of the table, unchanged. The gradient has the shape of the table. A token that occurs any number of
//! times gets the sum of its gradients, which is computed in f32, f64 for f64, and rounded to the type of the table once.

use candle_core::{CpuStorage, DType, Layout, Module, Result, Tensor};
use candle_nn::VarBuilder;

use super::graph::record_lean;
#[cfg(feature = "cuda")]
use super::kernel::cuda;
use super::kernel::{
    InPlace, IndexRangeError, Number, count_in_range, in_place, mismatch, runs_on, slice_of,
    slice_of_mut, sum_type,
};

const NAME: &str = "embedding";

/// The rows of a table that numbers name, as [`candle_nn::Embedding`]: the numbers have the type u8, u32 or i64 and any shape, and the
/// result has one more dimension, of `hidden_size`.
///
/// The gradient of a row is the sum over all places that name it. For f16 and bf16 it is computed in f32, in a table of that type,
/// and rounded once: in candle's the sum of a frequent token stops growing.
///
/// It keeps the numbers.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::{Embedding, Module};
///
/// # fn main() -> candle_core::Result<()> {
/// let table = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?; // [rows, width]
/// let tokens = Tensor::new(&[[2u32, 0]], &Device::Cpu)?; // [samples, tokens]
/// let y = Embedding::new(table, 2).forward(&tokens)?; // [samples, tokens, width]
/// assert_eq!(y.to_vec3::<f32>()?, [[[5., 6.], [1., 2.]]]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    embeddings: Tensor,
    hidden_size: usize,
}

impl Embedding {
    /// A layer with the table `embeddings` (rows, `hidden_size`).
    ///
    /// On the CPU, `forward` fails for a number that is not below the number of rows, but for the largest value of its type, such as
    /// `u32::MAX`, which gives a row of zeros.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Embedding, Module};
    ///
    /// let table = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?; // [rows, width]
    /// let tokens = Tensor::new(&[1u32, 1, 0], &Device::Cpu)?;
    /// let y = Embedding::new(table, 2).forward(&tokens)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[3., 4.], [3., 4.], [1., 2.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        Self {
            embeddings,
            hidden_size,
        }
    }

    /// The table.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::Embedding;
    /// # let table = Tensor::ones((1000, 64), DType::F32, &Device::Cpu)?;
    /// let tokens = Embedding::new(table, 64);
    /// assert_eq!(tokens.embeddings().dims(), [1000, 64]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn embeddings(&self) -> &Tensor {
        &self.embeddings
    }

    /// The number of elements of a row.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::Embedding;
    /// # let table = Tensor::ones((1000, 64), DType::F32, &Device::Cpu)?;
    /// let tokens = Embedding::new(table, 64);
    /// assert_eq!(tokens.hidden_size(), 64);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }
}

impl From<candle_nn::Embedding> for Embedding {
    fn from(layer: candle_nn::Embedding) -> Self {
        Self::new(layer.embeddings().clone(), layer.hidden_size())
    }
}

impl Module for Embedding {
    fn forward(&self, indexes: &Tensor) -> Result<Tensor> {
        let table = &self.embeddings;
        if table.device().is_cuda() && u32::try_from(table.elem_count()).is_err() {
            let (elements, of) = (table.elem_count(), "elements of the table");
            return Err(IndexRangeError::of(NAME, elements, of));
        }
        let elements = indexes.elem_count().saturating_mul(self.hidden_size);
        count_in_range(NAME, table.device(), elements)?;
        let mut dims = indexes.dims().to_vec();
        dims.push(self.hidden_size);
        let indexes = indexes.flatten_all()?.contiguous()?;
        let (dtype, wide) = (table.dtype(), sum_type(table.dtype()));
        let has_kernel = table.device().is_cuda() && runs_on(table.device()) && table.rank() == 2;
        let is_cpu = table.device().is_cpu();
        if dtype == wide && !has_kernel && !is_cpu {
            // candle's operation sums in this type, without another table.
            let rows = table.contiguous()?.index_select(&indexes, 0)?;
            return rows.reshape(dims);
        }
        let rows = match indexes.elem_count() {
            // candle launches nothing for no elements, which CUDA refuses.
            0 => Tensor::zeros((0, self.hidden_size), dtype, table.device())?,
            _ => table.detach().contiguous()?.index_select(&indexes, 0)?,
        };
        let rows = rows.reshape(dims)?;
        let (shape, device) = (table.shape().clone(), table.device().clone());
        record_lean(NAME, [table], rows, move |gradient, _| {
            if gradient.elem_count() == 0 {
                return Ok([Some(Tensor::zeros(&shape, dtype, &device)?)]);
            }
            #[cfg(feature = "cuda")]
            if has_kernel {
                return Ok([Some(cuda::sums_by_row(&indexes, &gradient, &shape)?)]);
            }
            let sums = Tensor::zeros(&shape, wide, &device)?;
            let gradient = gradient.to_dtype(wide)?.contiguous()?;
            let gradient = gradient.reshape((indexes.elem_count(), ()))?;
            let sums = match is_cpu {
                true => add_to_chosen(sums, &indexes, &gradient)?,
                false => sums.index_add(&indexes, &gradient, 0)?,
            };
            Ok([Some(sums.to_dtype(dtype)?)])
        })
    }
}

/// Adds rows (n, width) to those of a table on the CPU that `indexes` (n) names, one after the other: in place, because candle's operation makes
/// another table.
fn add_to_chosen(table: Tensor, indexes: &Tensor, rows: &Tensor) -> Result<Tensor> {
    // For candle the largest number of a type takes no row.
    let none = match indexes.dtype() {
        DType::U8 => u8::MAX.into(),
        _ => u32::MAX,
    };
    let indexes: Vec<u32> = indexes.to_dtype(DType::U32)?.to_vec1()?;
    let chosen = indexes
        .into_iter()
        .map(|index| (index != none).then_some(index));
    let chosen: Vec<_> = chosen.collect();
    in_place(NAME, &table, |table, layout| match table {
        InPlace::Cpu(CpuStorage::F32(table)) => add_each(table, layout, &chosen, rows),
        InPlace::Cpu(CpuStorage::F64(table)) => add_each(table, layout, &chosen, rows),
        _ => Err(mismatch(NAME)),
    })?;
    Ok(table)
}

fn add_each<S: Number>(
    table: &mut [S],
    layout: &Layout,
    chosen: &[Option<u32>],
    rows: &Tensor,
) -> Result<()> {
    let (storage, of_rows) = rows.storage_and_layout();
    let rows = slice_of::<S>(&storage, of_rows, NAME)?;
    let table = slice_of_mut(table, layout, NAME)?;
    let width = (rows.len() / chosen.len().max(1)).max(1);
    for (index, row) in chosen.iter().zip(rows.chunks(width)) {
        let Some(index) = index else { continue };
        let first = *index as usize * width;
        let sums = table.get_mut(first..first + width);
        let sums = sums.ok_or_else(|| mismatch(NAME))?;
        sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += *y);
    }
    Ok(())
}

/// Makes an [`Embedding`] with a table (`in_size`, `out_size`) named `weight`, initialized as by [`candle_nn::embedding()`].
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{VarBuilder, VarMap, embedding};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let tokens = embedding(1000, 64, vb.pp("tokens"))?; // `tokens.weight`
/// assert_eq!(tokens.embeddings().dims(), [1000, 64]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    Ok(candle_nn::embedding(in_size, out_size, vb)?.into())
}
