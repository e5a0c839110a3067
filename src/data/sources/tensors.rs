use candle_core::Tensor;

use crate::batch::{Batch, Extent};
use crate::data::Tensors;
use crate::data::dataset::{Dataset, out_of_range};
use crate::error::{BoxedError, Result};

/// Tensors in memory: a sample is one row of each.
///
/// The tensors have a common first dimension, the samples. A sample has the type of the whole, such as a pair for a pair, and its
/// tensors are views without that dimension: nothing is copied. What else a type of your own holds is cloned into each sample. It has no
/// name of its own: name the [loader](crate::data::LoaderBuilder::name) by its data.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::data::{Dataset, TensorDataset};
///
/// let x = Tensor::zeros((100, 3, 32), DType::F32, &Device::Cpu)?;
/// let y = Tensor::arange(0u32, 100, &Device::Cpu)?;
/// let pairs = TensorDataset::new((x, y))?;
/// assert_eq!(pairs.len(), 100);
/// let (x, y) = pairs.get(42).unwrap();
/// assert_eq!((x.dims(), y.to_scalar::<u32>()?), (&[3, 32][..], 42));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TensorDataset<B> {
    batch: B,
    len: usize,
}

impl<B: Tensors + Clone> TensorDataset<B> {
    /// Makes a dataset of the rows of tensors. They are detached: no gradient flows back into them.
    ///
    /// # Errors
    /// If there is no tensor, if one has no dimension, or if the first dimensions differ ([`is_batch`](crate::Error::is_batch)).
    pub fn new(mut batch: B) -> Result<Self> {
        let tensors = batch.tensors_mut();
        let rows = Extent::together(tensors.iter().map(|tensor| Some(tensor.extent())))?;
        for tensor in tensors {
            *tensor = tensor.detach();
        }
        let len = rows.samples;
        Ok(Self { batch, len })
    }
}

impl<B: Tensors + Clone + Send + Sync> Dataset for TensorDataset<B> {
    type Sample = B;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<B, BoxedError> {
        if index >= self.len {
            return Err(out_of_range(self, index).into());
        }
        let mut sample = self.batch.clone();
        for tensor in sample.tensors_mut() {
            *tensor = Tensor::get(tensor, index)?;
        }
        Ok(sample)
    }

    fn name(&self) -> String {
        "tensors".to_owned()
    }
}
