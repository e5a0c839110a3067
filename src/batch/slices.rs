use std::ops::Range;

use candle_core::{Device, Tensor};

use super::policy::Extent;
use crate::error::{BatchError, Result};

/// An ordered collection of samples that can be cut into runs of them.
///
/// | type | its samples | a slice of it |
/// |---|---|---|
/// | [`Tensor`] | the first dimension | a view; nothing is copied |
/// | tuples of up to 4 batches, [`Parts`](super::Parts)`(Vec<B>)`, `HashMap<K, B>` | those of the parts, which must agree | the same type, of the parts' slices |
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
    /// A tensor's cost is its number of elements, so that a batch of longer texts or larger images is known to need more memory
    /// before it runs.
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
}

/// Returns the extent of a batch with at least one sample.
pub(crate) fn extent_of(batch: &(impl Batch + ?Sized)) -> Result<Extent> {
    match batch.extent()? {
        Extent { samples: 0, .. } => Err(BatchError::Empty.into()),
        extent => Ok(extent),
    }
}

fn out_of_range(range: Range<usize>, samples: usize) -> BatchError {
    BatchError::OutOfRange { range, samples }
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
            return Err(out_of_range(range, samples).into());
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
        let slice = self.0.get(range.clone());
        Ok(slice.ok_or_else(|| out_of_range(range, self.0.len()))?)
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
}
