use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::ops::Range;

use candle_core::{Device, Tensor};

use super::origin::Origin;
use super::policy::Extent;
use crate::error::{BatchError, Result};

/// An ordered collection of samples that can be cut into runs of them.
///
/// | type | its samples | a slice of it |
/// |---|---|---|
/// | [`Tensor`] | the first dimension | a view; nothing is copied |
/// | tuples of up to 4 batches, [`Parts`]`(Vec<B>)`, `HashMap<K, B>` | those of the parts, which must agree | the same type, of the parts' slices |
/// | [`Samples`]`(&[T])` of anything | the elements | `&[T]` |
/// | `&B` | those of `B` | that of `B` |
///
/// A vector is not a batch by itself, since it could mean either: `Parts(vec![x, y])` cuts two tensors alike, and
/// `Samples(&texts)` is a list of single samples.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::Batch;
/// use candle_headroom::batch::{Extent, Samples};
///
/// let x = Tensor::zeros((8, 3), DType::F32, &Device::Cpu)?;
/// let y = Tensor::zeros(8, DType::U32, &Device::Cpu)?;
/// let batch = (x, y);
/// assert_eq!(batch.extent()?, Extent::new(8, 8 * 3 + 8)); // samples, elements
/// let (x, y) = batch.slice(2..5)?;
/// assert_eq!((x.dims(), y.dims()), (&[3, 3][..], &[3][..]));
///
/// let sentences = Samples(&["one", "two", "three"]);
/// assert_eq!(sentences.slice(1..3)?, ["two", "three"]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be cut into micro-batches",
    note = "wrap a vector: `Samples(&vec)` is a list of samples, `Parts(vec)` is a list of tensors that are cut alike"
)]
pub trait Batch {
    /// The type of a run of samples.
    type Slice<'a>
    where
        Self: 'a;

    /// Returns the number of samples, and their cost: a number that memory use grows with, in any unit that is the same for
    /// every batch.
    ///
    /// A tensor's cost is its number of elements: longer texts or larger images are known to need more memory before they run.
    ///
    /// # Errors
    /// [`BatchError`] if the batch has no length: a 0-dimensional tensor, no parts, or parts that disagree.
    fn extent(&self) -> Result<Extent>;

    /// Returns the samples in `range`.
    ///
    /// # Errors
    /// [`BatchError::OutOfRange`], or those of [`extent`](Self::extent).
    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>>;

    /// Returns the device that holds the samples, if they are tensors. It is synchronized before a retry.
    fn device(&self) -> Option<Device> {
        None
    }

    /// Returns where the batch, or its parts, come from, if they come from [`Loader`](crate::data::Loader)s.
    fn origins(&self) -> Vec<Origin<'_>> {
        Vec::new()
    }
}

/// Refuses a batch without samples.
pub(crate) fn not_empty(extent: Extent) -> Result<Extent> {
    match extent.samples {
        0 => Err(BatchError::Empty.into()),
        _ => Ok(extent),
    }
}

impl Batch for Tensor {
    type Slice<'a> = Tensor;

    fn extent(&self) -> Result<Extent> {
        let samples = self.dims().first().ok_or(BatchError::Scalar)?;
        Ok(Extent::new(*samples, self.elem_count()))
    }

    fn slice(&self, range: Range<usize>) -> Result<Tensor> {
        let samples = self.extent()?.samples;
        if range.start > range.end || range.end > samples {
            return Err(BatchError::OutOfRange { range, samples }.into());
        }
        Ok(self.narrow(0, range.start, range.len())?)
    }

    fn device(&self) -> Option<Device> {
        Some(self.device().clone())
    }
}

/// A list of samples of any type, which all cost the same. A slice of it is `&[T]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Samples<'s, T>(pub &'s [T]);

impl<'s, T> Batch for Samples<'s, T> {
    type Slice<'a>
        = &'s [T]
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        Ok(Extent::new(self.0.len(), self.0.len()))
    }

    fn slice(&self, range: Range<usize>) -> Result<&'s [T]> {
        let (slice, samples) = (self.0.get(range.clone()), self.0.len());
        Ok(slice.ok_or(BatchError::OutOfRange { range, samples })?)
    }
}

impl<B: Batch + ?Sized> Batch for &B {
    type Slice<'a>
        = B::Slice<'a>
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        (**self).extent()
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        (**self).slice(range)
    }

    fn device(&self) -> Option<Device> {
        (**self).device()
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        (**self).origins()
    }
}

/// Returns the number of samples, if all parts agree on it, and the sum of their costs.
fn together(parts: impl IntoIterator<Item = Result<Extent>>) -> Result<Extent> {
    let mut parts = parts.into_iter();
    let mut all = parts.next().ok_or(BatchError::NoParts)??;
    for (index, part) in parts.enumerate() {
        let Extent { samples, cost } = part?;
        if samples != all.samples {
            return Err(BatchError::Lengths {
                part: index + 1,
                expected: all.samples,
                found: samples,
            }
            .into());
        }
        all.cost = all.cost.saturating_add(cost);
    }
    Ok(all)
}

macro_rules! tuple {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Batch),+> Batch for ($($name,)+) {
            type Slice<'a> = ($($name::Slice<'a>,)+) where Self: 'a;

            fn extent(&self) -> Result<Extent> {
                together([$(self.$index.extent()),+])
            }

            fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
                Ok(($(self.$index.slice(range.clone())?,)+))
            }

            fn device(&self) -> Option<Device> {
                [$(self.$index.device()),+].into_iter().flatten().next()
            }

            fn origins(&self) -> Vec<Origin<'_>> {
                [$(self.$index.origins()),+].concat()
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

/// Any number of batches, such as tensors, that are cut alike. A slice of it is a vector of the parts' slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts<B>(pub Vec<B>);

impl<B: Batch> Batch for Parts<B> {
    type Slice<'a>
        = Vec<B::Slice<'a>>
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        together(self.0.iter().map(B::extent))
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        let slices = self.0.iter().map(|part| part.slice(range.clone()));
        slices.collect()
    }

    fn device(&self) -> Option<Device> {
        self.0.iter().find_map(B::device)
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        self.0.iter().flat_map(B::origins).collect()
    }
}

impl<K: Clone + Eq + Hash, B: Batch, S: BuildHasher + Default> Batch for HashMap<K, B, S> {
    type Slice<'a>
        = HashMap<K, B::Slice<'a>, S>
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        together(self.values().map(B::extent))
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        self.iter()
            .map(|(key, part)| Ok((key.clone(), part.slice(range.clone())?)))
            .collect()
    }

    fn device(&self) -> Option<Device> {
        self.values().find_map(B::device)
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        self.values().flat_map(B::origins).collect()
    }
}
