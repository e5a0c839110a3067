use std::sync::Arc;

use candle_core::Tensor;

use super::Tensors;
use super::order::even_blocks;
use crate::batch::{Batch, Extent};
use crate::error::{BoxedError, DataError, Error, Result, invalid};

/// Samples that can be read in any order, by several threads at once. What is not `Sync`, such as a connection to a database, goes behind a
/// `Mutex`, which `get` locks.
///
/// ```
/// use candle_headroom::data::Dataset;
/// use candle_headroom::error::BoxedError;
///
/// /// The numbers from 0, each with its square.
/// struct Squares(usize);
///
/// impl Dataset for Squares {
///     type Sample = (u32, u32);
///
///     fn len(&self) -> usize {
///         self.0
///     }
///
///     fn get(&self, index: usize) -> Result<Self::Sample, BoxedError> {
///         let number = u32::try_from(index)?;
///         Ok((number, number * number))
///     }
/// }
///
/// let squares: Box<dyn Dataset<Sample = (u32, u32)>> = Box::new(Squares(10)); // object-safe
/// assert_eq!(squares.get(3)?, (3, 9));
/// # Ok::<(), BoxedError>(())
/// ```
pub trait Dataset: Send + Sync {
    /// One sample.
    type Sample: Send;

    /// Returns the number of samples. It must not change while a loader uses the dataset.
    fn len(&self) -> usize;

    /// Reads a sample. Several threads call it at once.
    ///
    /// # Errors
    /// Any error; the loader adds the dataset's name and the index.
    fn get(&self, index: usize) -> Result<Self::Sample, BoxedError>;

    /// Returns what a sample costs, in a unit of your own, such as its tokens or pixels; 1 by default. Batches of a total cost, and
    /// batches of samples of similar cost, ask for it before they read a sample, so it must be quick and always the same.
    ///
    /// # Errors
    /// Any error; the loader adds the dataset's name and the index. The batches of the window then do not come.
    fn cost(&self, index: usize) -> Result<usize, BoxedError> {
        let _ = index;
        Ok(1)
    }

    /// Returns a name for errors; by default that of the type.
    fn name(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }

    /// Returns whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers of samples of the parts that it consists of, one after the other, for a
    /// [mixture](super::LoaderBuilder::mixture); by default it is one part.
    fn parts(&self) -> Vec<usize> {
        vec![self.len()]
    }

    /// Returns where each block of samples ends that are read faster together than one by one, such as those of a file, for
    /// [`LoaderBuilder::blocks`](super::LoaderBuilder::blocks): rising numbers, of which the last one is the number of samples. By default
    /// blocks of 1,024 samples. If there are more than 2^18 blocks, neighbours are merged.
    fn blocks(&self) -> Vec<usize> {
        even_blocks(self.len())
    }
}

macro_rules! pointer {
    ($($pointer:ty),+) => {$(
        impl<D: Dataset + ?Sized> Dataset for $pointer {
            type Sample = D::Sample;

            fn len(&self) -> usize {
                (**self).len()
            }

            fn get(&self, index: usize) -> Result<Self::Sample, BoxedError> {
                (**self).get(index)
            }

            fn cost(&self, index: usize) -> Result<usize, BoxedError> {
                (**self).cost(index)
            }

            fn name(&self) -> String {
                (**self).name()
            }

            fn parts(&self) -> Vec<usize> {
                (**self).parts()
            }

            fn blocks(&self) -> Vec<usize> {
                (**self).blocks()
            }
        }
    )+};
}

pointer!(&D, Box<D>, Arc<D>);

/// A list of samples in memory. Its name is that of its type: name the [loader](super::LoaderBuilder::name) by its data.
///
/// ```
/// use candle_headroom::data::{Dataset, Items};
///
/// let words = Items(vec!["one", "two"]);
/// assert_eq!((words.len(), words.get(1)?), (2, "two"));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Items<T>(pub Vec<T>);

impl<T: Clone + Send + Sync> Dataset for Items<T> {
    type Sample = T;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<T, BoxedError> {
        let sample = self.0.as_slice().get(index);
        Ok(sample.cloned().ok_or_else(|| out_of_range(self, index))?)
    }
}

/// Several datasets one after the other; the parts of a [mixture](super::LoaderBuilder::mixture).
///
/// ```
/// use candle_headroom::data::{Concat, Dataset, Items};
///
/// let all = Concat::new(vec![Items(vec![1, 2, 3]), Items(vec![10, 20])]);
/// assert_eq!((all.len(), all.get(3)?), (5, 10));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Concat<D> {
    parts: Vec<D>,
    /// How many samples there are up to the end of each part.
    ends: Vec<usize>,
}

impl<D: Dataset> Concat<D> {
    /// Puts datasets one after the other. Their lengths are asked for once.
    ///
    /// ```
    /// use candle_headroom::data::{Concat, Dataset, Items};
    ///
    /// let all = Concat::new(vec![Items(vec![1]), Items(vec![2, 3])]);
    /// assert_eq!(all.parts(), [1, 2]);
    /// ```
    #[must_use]
    pub fn new(parts: Vec<D>) -> Self {
        let mut sum = 0_usize;
        let ends = parts.iter().map(|part| {
            sum = sum.saturating_add(part.len());
            sum
        });
        let ends = ends.collect();
        Self { parts, ends }
    }

    /// The part that holds a sample, and the sample's index in it.
    pub(super) fn locate(&self, index: usize) -> Option<(&D, usize)> {
        let at = self.ends.partition_point(|end| *end <= index);
        self.parts
            .get(at)
            .map(|part| (part, index - self.begin(at)))
    }

    pub(super) fn datasets(&self) -> &[D] {
        &self.parts
    }

    fn begin(&self, part: usize) -> usize {
        let before = part.checked_sub(1).and_then(|before| self.ends.get(before));
        before.copied().unwrap_or(0)
    }
}

impl<D: Dataset> Dataset for Concat<D> {
    type Sample = D::Sample;

    fn len(&self) -> usize {
        self.begin(self.parts.len())
    }

    fn get(&self, index: usize) -> Result<Self::Sample, BoxedError> {
        let place = self.locate(index);
        let (part, within) = place.ok_or_else(|| out_of_range(self, index))?;
        // With the part's own name and index, which the whole does not show.
        part.get(within).map_err(|reason| {
            let dataset = part.name();
            DataError::Sample {
                dataset,
                index: within,
                reason,
            }
            .into()
        })
    }

    fn cost(&self, index: usize) -> Result<usize, BoxedError> {
        let place = self.locate(index);
        let (part, within) = place.ok_or_else(|| out_of_range(self, index))?;
        part.cost(within)
    }

    fn name(&self) -> String {
        let names: Vec<_> = self.parts.iter().map(D::name).collect();
        names.join(" + ")
    }

    fn parts(&self) -> Vec<usize> {
        self.parts.iter().map(D::len).collect()
    }

    /// Returns the blocks of its parts.
    fn blocks(&self) -> Vec<usize> {
        let parts = self.parts.iter().enumerate();
        let blocks = parts.map(|(at, part)| (self.begin(at), part.blocks()));
        let ends = blocks.flat_map(|(begin, ends)| ends.into_iter().map(move |end| begin + end));
        ends.collect()
    }
}

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
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::data::TensorDataset;
    ///
    /// let images = Tensor::zeros((100, 3), DType::F32, &Device::Cpu)?;
    /// let labels = Tensor::zeros(99, DType::U32, &Device::Cpu)?;
    /// let error = TensorDataset::new((images, labels)).unwrap_err();
    /// assert!(error.is_batch(), "{error}");
    /// # Ok::<(), candle_core::Error>(())
    /// ```
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

/// The error for an index that a dataset does not have.
pub(super) fn out_of_range<D: Dataset + ?Sized>(dataset: &D, index: usize) -> Error {
    let (name, len) = (dataset.name(), dataset.len());
    invalid!(Data, "{name} has {len} samples, not one at {index}")
}

/// The error for a dataset that has no samples.
pub(super) fn without_samples(name: &str) -> Error {
    invalid!(Data, "{name} has no samples")
}
