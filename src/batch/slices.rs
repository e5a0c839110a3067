use std::ops::Range;

use candle_core::{Device, Tensor};

use super::Extent;
use crate::error::{BatchError, Result};

/// Something that holds samples in order and can be cut into runs of them.
///
/// | type | its samples | a slice of it |
/// |---|---|---|
/// | [`Tensor`] | the first dimension | a view, nothing is copied |
/// | tuples to 4, `[B; N]`, `Vec<B>`, `HashMap<K, B>` of batches | those of their parts, which must agree | the same, of the parts' slices |
/// | `[T]` of anything | its elements | `&[T]` |
/// | `&B`, `Box<B>` | those of `B` | that of `B` |
///
/// So `vec![x, y]` is two tensors cut alike, and `&samples[..]` (or `samples.as_slice()`) a list of single samples.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::Batch;
///
/// let x = Tensor::zeros((8, 3), DType::F32, &Device::Cpu)?;
/// let y = Tensor::zeros(8, DType::U32, &Device::Cpu)?;
/// let batch = (x, y);
/// assert_eq!(batch.samples()?, 8);
/// assert_eq!(batch.cost()?, 8 * 3 + 8); // elements
/// let (x, y) = batch.slice(2..5)?;
/// assert_eq!((x.dims(), y.dims()), (&[3, 3][..], &[3][..]));
///
/// let sentences = ["one", "two", "three"];
/// assert_eq!(sentences[..].slice(1..3)?, ["two", "three"]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be cut into micro-batches",
    note = "a `Vec<T>` of samples is a batch as a slice: pass `&samples[..]` or `samples.as_slice()`"
)]
pub trait Batch {
    /// What a run of samples looks like.
    type Slice<'a>
    where
        Self: 'a;

    /// The number of samples.
    ///
    /// # Errors
    /// [`BatchError`] where the batch has no length: a 0-dimensional tensor, no parts, or parts that disagree.
    fn samples(&self) -> Result<usize>;

    /// The samples of `range`.
    ///
    /// # Errors
    /// [`BatchError::OutOfRange`], or those of [`samples`](Self::samples).
    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>>;

    /// What the memory that its samples take grows with, in any unit, as long as it is the same for every batch: the number
    /// of samples, where it is not told otherwise. Tensors count their elements, so that a batch of longer texts or larger
    /// pictures is known to take more before it is run.
    ///
    /// # Errors
    /// Those of [`samples`](Self::samples).
    fn cost(&self) -> Result<usize> {
        self.samples()
    }

    /// The device that its samples are on, if they are tensors: it is waited for before anything is tried again.
    fn device(&self) -> Option<Device> {
        None
    }
}

/// What a batch that is going to be cut holds.
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

impl<T> Batch for [T] {
    type Slice<'a>
        = &'a [T]
    where
        T: 'a;

    fn samples(&self) -> Result<usize> {
        Ok(self.len())
    }

    fn slice(&self, range: Range<usize>) -> Result<&[T]> {
        let slice = self.get(range.clone());
        Ok(slice.ok_or_else(|| out_of_range(range, self.len()))?)
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
