use std::ops::Range;

use candle_core::{Device, Tensor};

use super::policy::Extent;
use crate::error::{BatchError, Result};

/// An ordered collection of samples that can be cut into runs of them.
///
/// | type | its samples | a slice of it |
/// |---|---|---|
/// | [`Tensor`] | the first dimension | a view; nothing is copied |
/// | tuples of up to 4 batches, `[B; N]`, [`Parts`](super::Parts)`(Vec<B>)`, `HashMap<K, B>` | those of the parts, which must agree | the same type, of the parts' slices |
/// | [`Samples`]`(&[T])` of anything | the elements | `&[T]` |
/// | `&B`, `Box<B>` | those of `B` | that of `B` |
///
/// A vector is not a batch by itself, since it could mean either: `Parts(vec![x, y])` cuts two tensors alike, and
/// `Samples(&texts)` is a list of single samples.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::Batch;
/// use candle_headroom::batch::Samples;
///
/// let x = Tensor::zeros((8, 3), DType::F32, &Device::Cpu)?;
/// let y = Tensor::zeros(8, DType::U32, &Device::Cpu)?;
/// let batch = (x, y);
/// assert_eq!(batch.samples()?, 8);
/// assert_eq!(batch.cost()?, 8 * 3 + 8); // elements
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

    /// Returns the number of samples.
    ///
    /// # Errors
    /// [`BatchError`] if the batch has no length: a 0-dimensional tensor, no parts, or parts that disagree.
    fn samples(&self) -> Result<usize>;

    /// Returns the samples in `range`.
    ///
    /// # Errors
    /// [`BatchError::OutOfRange`], or those of [`samples`](Self::samples).
    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>>;

    /// Returns a number that memory use grows with, in any unit that is the same for every batch.
    ///
    /// The default is the number of samples. Tensors return their number of elements, so that a batch of longer texts or
    /// larger images is known to need more memory before it runs.
    ///
    /// # Errors
    /// Those of [`samples`](Self::samples).
    fn cost(&self) -> Result<usize> {
        self.samples()
    }

    /// Returns the device that holds the samples, if they are tensors. It is synchronized before a retry.
    fn device(&self) -> Option<Device> {
        None
    }
}

/// Number of samples in a batch and their total cost.
pub(crate) fn extent_of<B: Batch + ?Sized>(batch: &B) -> Result<Extent> {
    match batch.samples()? {
        0 => Err(BatchError::Empty.into()),
        samples => Ok(Extent::new(samples, batch.cost()?)),
    }
}

fn out_of_range(range: Range<usize>, samples: usize) -> BatchError {
    BatchError::OutOfRange {
        start: range.start,
        end: range.end,
        samples,
    }
}

impl Batch for Tensor {
    type Slice<'a> = Tensor;

    fn samples(&self) -> Result<usize> {
        let first = self.dims().first().copied();
        Ok(first.ok_or(BatchError::Scalar)?)
    }

    fn slice(&self, range: Range<usize>) -> Result<Tensor> {
        let samples = self.samples()?;
        if range.start > range.end || range.end > samples {
            return Err(out_of_range(range, samples).into());
        }
        Ok(self.narrow(0, range.start, range.len())?)
    }

    fn cost(&self) -> Result<usize> {
        self.samples()?;
        Ok(self.elem_count())
    }

    fn device(&self) -> Option<Device> {
        Some(self.device().clone())
    }
}

/// A list of samples of any type. A slice of it is `&[T]`.
///
/// ```
/// use candle_headroom::batch::Samples;
/// use candle_headroom::process_batches;
///
/// let texts = ["a", "bc", "def"];
/// let lengths = process_batches(&Samples(&texts), 2, |chunk| Ok(chunk.concat().len()))?;
/// assert_eq!(lengths, [3, 3]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Samples<'s, T>(pub &'s [T]);

impl<'s, T> Batch for Samples<'s, T> {
    type Slice<'a>
        = &'s [T]
    where
        Self: 'a;

    fn samples(&self) -> Result<usize> {
        Ok(self.0.len())
    }

    fn slice(&self, range: Range<usize>) -> Result<&'s [T]> {
        let slice = self.0.get(range.clone());
        Ok(slice.ok_or_else(|| out_of_range(range, self.0.len()))?)
    }
}

macro_rules! pointer {
    ($($pointer:ty),+) => {$(
        impl<B: Batch + ?Sized> Batch for $pointer {
            type Slice<'a> = B::Slice<'a> where Self: 'a;

            fn samples(&self) -> Result<usize> {
                (**self).samples()
            }

            fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
                (**self).slice(range)
            }

            fn cost(&self) -> Result<usize> {
                (**self).cost()
            }

            fn device(&self) -> Option<Device> {
                (**self).device()
            }
        }
    )+};
}

pointer!(&B, Box<B>);
