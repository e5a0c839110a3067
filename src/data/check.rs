//! What batches must be, as their user declares it.

use std::fmt::Debug;
use std::ops::{Bound, Range, RangeBounds};

use candle_core::{CpuStorage, DType, Device, Storage, Tensor, WithDType};
use half::{bf16, f16};

use super::Tensors;
use crate::error::{Result, invalid};

/// Checks a batch's tensors against what is declared of them, one [`Check`] for each, in the order of [`Tensors::tensors`].
///
/// A [`Loader`](super::Loader) does the same with its first batch. What is not declared is not checked: a mask may hold infinity, and
/// tensors after the last check may be anything.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::data::{Check, check};
///
/// let images = Tensor::rand(0f32, 1., (4, 1, 28, 28), &Device::Cpu)?;
/// let labels = Tensor::new(&[1u32, 10, 3, 2], &Device::Cpu)?;
/// let checks = [
///     Check::new("images").dtype(DType::F32).shape([None, Some(1), Some(28), Some(28)]).finite(),
///     Check::new("labels").dtype(DType::U32).shape([None]).range(0..10),
/// ];
/// let error = check(&(images, labels), &checks).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "the batch: sample 1, tensor `labels` holds 10 at [1], expected values in 0..10",
/// );
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// Tensors on a GPU are copied to the host to look at their values.
///
/// # Errors
/// An [error of data](crate::Error::is_data) for the first thing that is not as declared, with the sample's place in the batch.
pub fn check(batch: &impl Tensors, checks: &[Check]) -> Result<()> {
    look(batch, checks, None, "the batch", true)
}

/// What one tensor of a batch must be.
///
/// A check by itself says that the tensor has elements; each method adds something. See [`check()`] and
/// [`LoaderBuilder::check`](crate::data::LoaderBuilder::check).
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::data::{Check, check};
///
/// // Token ids of a vocabulary of 32,000, and targets of which some do not count.
/// let tokens = Check::new("tokens").dtype(DType::U32).shape([None, Some(3)]).range(0..32_000);
/// let targets = Check::new("targets").dtype(DType::I64).shape([None, Some(3)]).range(0..32_000).ignore(-100);
/// let batch = (Tensor::new(&[[5u32, 1, 2]], &Device::Cpu)?, Tensor::new(&[[1i64, 2, -100]], &Device::Cpu)?);
/// check(&batch, &[tokens, targets])?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "pass it to `check` or to a loader's builder"]
pub struct Check {
    name: String,
    dtype: Option<DType>,
    shape: Option<Vec<Option<usize>>>,
    /// The range that values must be in, and as it is written.
    bounds: Option<(Bounds, String)>,
    /// Allowed outside of the bounds.
    ignored: Option<i64>,
    finite: bool,
}

type Bounds = (Bound<i64>, Bound<i64>);

impl Check {
    /// Requires that a tensor has elements. Errors call it by this name; its place among the checks says which tensor of the batch it is.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::data::{Check, check};
    ///
    /// let images = Tensor::zeros((0, 3), DType::F32, &Device::Cpu)?;
    /// let error = check(&images, &[Check::new("images")]).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "the batch: tensor `images` has no elements: its shape is [0, 3], expected at least one sample",
    /// );
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            dtype: None,
            shape: None,
            bounds: None,
            ignored: None,
            finite: false,
        }
    }

    /// Requires a dtype.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::data::{Check, check};
    /// let images = Tensor::zeros((2, 3), DType::F64, &Device::Cpu)?;
    /// let error = check(&images, &[Check::new("images").dtype(DType::F32)]).unwrap_err();
    /// assert_eq!(error.to_string(), "the batch: tensor `images` has dtype f64, expected f32");
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Requires a number of dimensions and their sizes. `None` stands for any size, as for the first dimension, which counts the samples.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::data::{Check, check};
    /// let images = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let error = check(&images, &[Check::new("images").shape([None, Some(4)])]).unwrap_err();
    /// assert_eq!(error.to_string(), "the batch: tensor `images` has shape [2, 3], expected [_, 4]");
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn shape(mut self, shape: impl Into<Vec<Option<usize>>>) -> Self {
        self.shape = Some(shape.into());
        self
    }

    /// Requires values within a range, such as `0..10` for labels of 10 classes, `0..vocabulary` for token ids, or `0..=1` for pixels.
    /// NaN is in no range.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Check, check};
    /// let pixels = Tensor::new(&[0.5f32, 2.], &Device::Cpu)?;
    /// let error = check(&pixels, &[Check::new("pixels").range(0..=1)]).unwrap_err();
    /// assert_eq!(error.to_string(), "the batch: sample 1, tensor `pixels` holds 2 at [1], expected values in 0..=1");
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn range(mut self, range: impl RangeBounds<i64> + Debug) -> Self {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        self.bounds = Some((bounds, format!("{range:?}")));
        self
    }

    /// Also allows this value outside of [`range`](Self::range), such as -100 for targets without a loss.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Check, check};
    /// let targets = Tensor::new(&[3i64, -100], &Device::Cpu)?;
    /// let labels = Check::new("targets").range(0..10);
    /// assert!(check(&targets, &[labels.clone()]).is_err());
    /// assert!(check(&targets, &[labels.ignore(-100)]).is_ok());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn ignore(mut self, value: i64) -> Self {
        self.ignored = Some(value);
        self
    }

    /// Requires that no value is NaN or infinite.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Check, check};
    /// let frames = Tensor::new(&[1f32, f32::INFINITY], &Device::Cpu)?;
    /// let error = check(&frames, &[Check::new("frames").finite()]).unwrap_err();
    /// assert_eq!(error.to_string(), "the batch: sample 1, tensor `frames` holds inf at [1], expected finite values");
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn finite(mut self) -> Self {
        self.finite = true;
        self
    }

    /// Looks at dtype and shape, then at the values, those on a GPU only if `copies`.
    fn look(&self, tensor: &Tensor, may_be_empty: bool, copies: bool) -> Result<(), Fault> {
        let found = tensor.dtype();
        if let Some(expected) = self.dtype.filter(|expected| *expected != found) {
            let found = format!("has dtype {}", found.as_str());
            return Err(whole(found, expected.as_str()));
        }
        if let Some(expected) = &self.shape {
            compare_shapes(tensor.dims(), expected)?;
        }
        match tensor.elem_count() {
            0 if may_be_empty => Ok(()),
            0 => {
                let found = format!("has no elements: its shape is {:?}", tensor.dims());
                Err(whole(found, "at least one sample"))
            }
            _ if copies || tensor.device().is_cpu() => self.look_at_values(tensor),
            _ => Ok(()),
        }
    }

    /// Looks at the values of a tensor that has some.
    fn look_at_values(&self, tensor: &Tensor) -> Result<(), Fault> {
        if self.bounds.is_none() && !self.finite {
            return Ok(());
        }
        let unread = |reason: String| whole(format!("cannot be read: {reason}"), "its values");
        let tensor = readable(tensor).map_err(|error| unread(error.to_string()))?;
        let (storage, layout) = tensor.storage_and_layout();
        let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
        else {
            return Err(unread(format!("it is at {:?}", tensor.device())));
        };
        let look = Look {
            dims: tensor.dims(),
            range: start..end,
            check: self,
        };
        match storage {
            CpuStorage::U8(all) => look.integers(all),
            CpuStorage::U32(all) => look.integers(all),
            CpuStorage::I16(all) => look.integers(all),
            CpuStorage::I32(all) => look.integers(all),
            CpuStorage::I64(all) => look.integers(all),
            CpuStorage::F16(all) => look.floats(all, f16::is_finite),
            CpuStorage::BF16(all) => look.floats(all, bf16::is_finite),
            CpuStorage::F32(all) => look.floats(all, f32::is_finite),
            CpuStorage::F64(all) => look.floats(all, f64::is_finite),
            _ => Err(unread(format!(
                "values of dtype {} have no number",
                tensor.dtype().as_str()
            ))),
        }
    }
}

/// Without `indices` a sample's index is its place in the batch. Values on a GPU are looked at if `copies`.
pub(super) fn look(
    batch: &impl Tensors,
    checks: &[Check],
    indices: Option<&[usize]>,
    dataset: &str,
    copies: bool,
) -> Result<()> {
    let tensors = batch.tensors();
    // A rank without a share of the batch has none of its samples.
    let may_be_empty = indices.is_some_and(<[usize]>::is_empty);
    for (place, check) in checks.iter().enumerate() {
        let unexpected = |index: Option<usize>, found, expected| {
            let sample = index.map_or_else(String::new, |index| format!("sample {index}, "));
            invalid!(
                Data,
                "{dataset}: {sample}tensor `{}` {found}, expected {expected}",
                check.name
            )
        };
        let Some(tensor) = tensors.get(place) else {
            let (found, expected) = (tensors.len(), checks.len());
            let found = format!("is missing: the batch has {found} of {expected} tensors");
            return Err(unexpected(None, found, "one for each check".to_owned()));
        };
        let looked = check.look(tensor, may_be_empty, copies);
        looked.map_err(|(row, found, expected)| {
            let sample = |row: usize| match indices {
                None => Some(row),
                Some(all) if tensor.dims().first() == Some(&all.len()) => all.get(row).copied(),
                Some(_) => None,
            };
            unexpected(row.and_then(sample), found, expected)
        })?;
    }
    Ok(())
}

/// Compares sizes; `None` is any.
fn compare_shapes(found: &[usize], expected: &[Option<usize>]) -> Result<(), Fault> {
    let mut sizes = found.iter().zip(expected);
    let is_same = found.len() == expected.len()
        && sizes.all(|(found, expected)| expected.is_none_or(|expected| expected == *found));
    if is_same {
        return Ok(());
    }
    let size = |size: &Option<usize>| size.map_or("_".to_owned(), |size| size.to_string());
    let sizes: Vec<_> = expected.iter().map(size).collect();
    let expected = format!("[{}]", sizes.join(", "));
    Err(whole(format!("has shape {found:?}"), &expected))
}

/// A tensor is not what was declared: the row of its first dimension, if it is one row's fault, what was found, and what was expected.
type Fault = (Option<usize>, String, String);

/// A fault of the whole tensor.
fn whole(found: String, expected: &str) -> Fault {
    (None, found, expected.to_owned())
}

/// On the CPU, contiguous, and of a type whose numbers can be read.
fn readable(tensor: &Tensor) -> Result<Tensor, candle_core::Error> {
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    match tensor.dtype() {
        // `WithDType::to_f64` of candle 0.11.1 never returns for it.
        DType::F8E4M3 => tensor.to_dtype(DType::F32),
        _ => Ok(tensor),
    }
}

struct Look<'a> {
    dims: &'a [usize],
    /// Of the storage.
    range: Range<usize>,
    check: &'a Check,
}

impl Look<'_> {
    fn integers<T: WithDType + Into<i64>>(&self, all: &[T]) -> Result<(), Fault> {
        self.values(all, |_| true, T::into, |bound| bound)
    }

    fn floats<T: WithDType>(&self, all: &[T], is_finite: fn(T) -> bool) -> Result<(), Fault> {
        self.values(all, is_finite, T::to_f64, |bound| bound as f64)
    }

    /// Looks at values as numbers that hold each of them: integers of 64 bits or floats of 64 bits.
    fn values<T: WithDType, N: Copy + PartialOrd>(
        &self,
        all: &[T],
        is_finite: impl Fn(T) -> bool,
        number: impl Fn(T) -> N,
        bound: impl Fn(i64) -> N,
    ) -> Result<(), Fault> {
        let values = all.get(self.range.clone()).unwrap_or_default();
        if self.check.finite
            && let Some(place) = find(values, |value| !is_finite(value))
        {
            return Err(self.fault(values, place, "finite values".to_owned()));
        }
        if let Some((bounds, text)) = &self.check.bounds {
            let within = (bounds.0.map(&bound), bounds.1.map(&bound));
            let ignored = self.check.ignored.map(&bound);
            let is_bad = |value: T| {
                let value = number(value);
                !within.contains(&value) && ignored != Some(value)
            };
            if let Some(place) = find(values, is_bad) {
                return Err(self.fault(values, place, format!("values in {text}")));
            }
        }
        Ok(())
    }

    fn fault<T: WithDType>(&self, values: &[T], place: usize, expected: String) -> Fault {
        let (mut rest, mut at) = (place, Vec::new());
        for size in self.dims.iter().rev() {
            at.push(rest % (*size).max(1));
            rest /= (*size).max(1);
        }
        at.reverse();
        let value = values.get(place).copied().unwrap_or_else(T::zero);
        let found = match at.is_empty() {
            true => format!("holds {value}"),
            false => format!("holds {value} at {at:?}"),
        };
        (at.first().copied(), found, expected)
    }
}

/// The place of the first bad value. Blocks are looked at without branches, in vector instructions.
fn find<T: Copy>(values: &[T], is_bad: impl Fn(T) -> bool) -> Option<usize> {
    const BLOCK: usize = 1024;
    let mut blocks = values.chunks(BLOCK);
    let has_bad = |block: &[T]| block.iter().fold(false, |bad, value| bad | is_bad(*value));
    let before = blocks.position(has_bad)? * BLOCK;
    let mut rest = values.get(before..)?.iter();
    Some(before + rest.position(|value| is_bad(*value))?)
}
