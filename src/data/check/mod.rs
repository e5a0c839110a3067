//! What batches must be, as their user declares it.

mod fault;
mod values;

use std::ops::RangeBounds;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::{DType, Tensor};

use super::Tensors;
use crate::error::{DataError, Result};
use fault::{Fault, compare_shapes, conversion};
use values::Rules;

/// Checks a batch's tensors against what is declared of them, one [`Check`] for each, in the order of [`Tensors::tensors`].
///
/// A [`Loader`](super::Loader) does the same with its first batch. What is not declared is not looked at: a mask may hold infinity, and
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
///     "the batch: sample 1, tensor `labels` holds 10 at [1], expected values in 0..10; they seem to count from 1: subtract 1",
/// );
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// Tensors on a GPU are copied to the host to look at their values.
///
/// # Errors
/// [`DataError::Unexpected`] for the first thing that is not as declared, with the sample's place in the batch.
pub fn check(batch: &impl Tensors, checks: &[Check]) -> Result<()> {
    Ok(look(batch, checks, None, "the batch", true)?)
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
/// let tokens = Check::new("tokens").dtype(DType::U32).shape([None, Some(3)]).range(0..32_000).varies();
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
    rules: Rules,
}

impl Check {
    /// Checks a tensor that errors call by this name. It is found by its place in the batch.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            dtype: None,
            shape: None,
            rules: Rules::default(),
        }
    }

    /// Requires a dtype.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Requires a rank and sizes; `None` stands for any size, as that of the first dimension, which counts the samples.
    pub fn shape(mut self, shape: impl Into<Vec<Option<usize>>>) -> Self {
        self.shape = Some(shape.into());
        self
    }

    /// Requires values within a range, such as `0..10` for labels of 10 classes, `0..vocabulary` for token ids, or `0..=1` for pixels.
    /// NaN is in no range.
    pub fn range(mut self, range: impl RangeBounds<i64>) -> Self {
        self.rules.bounds = Some((range.start_bound().cloned(), range.end_bound().cloned()));
        self
    }

    /// Allows this value outside of [`range`](Self::range), such as -100 for targets that do not count.
    pub fn ignore(mut self, value: i64) -> Self {
        self.rules.ignored = Some(value);
        self
    }

    /// Requires that no value is NaN or infinite.
    pub fn finite(mut self) -> Self {
        self.rules.finite = true;
        self
    }

    /// Requires that not all values are equal, and not all samples if there are several. A batch of labels that are all equal comes
    /// from sorted samples that were not shuffled, and equal inputs often from a decoder that fails without saying so.
    pub fn varies(mut self) -> Self {
        self.rules.varies = true;
        self
    }

    /// Looks at dtype and shape, then at the values, those on a GPU only if `copies`.
    fn look(&self, tensor: &Tensor, may_be_empty: bool, copies: bool) -> Result<(), Fault> {
        let found = tensor.dtype();
        if let Some(expected) = self.dtype.filter(|expected| *expected != found) {
            let remedy = conversion(found, expected);
            return Err(Fault::whole(
                format!("has dtype {}", found.as_str()),
                format!("{}; {remedy}", expected.as_str()),
            ));
        }
        if let Some(expected) = &self.shape {
            compare_shapes(tensor.dims(), expected)?;
        }
        match tensor.elem_count() {
            0 if may_be_empty => Ok(()),
            0 => Err(Fault::whole(
                format!("has no elements: its shape is {:?}", tensor.dims()),
                "at least one sample",
            )),
            _ if copies || tensor.device().is_cpu() => values::look(tensor, &self.rules),
            _ => Ok(()),
        }
    }
}

/// What a loader checks.
#[derive(Debug, Default)]
pub(super) struct Checks {
    pub(super) checks: Vec<Check>,
    /// Of every batch, not only of the first.
    pub(super) every_batch: bool,
    /// A batch was looked at.
    pub(super) has_looked: AtomicBool,
}

impl Checks {
    pub(super) fn check(
        &self,
        batch: &impl Tensors,
        indices: &[usize],
        dataset: &str,
        is_first: bool,
    ) -> Result<(), DataError> {
        // The first batch may have failed before it could be looked at.
        let is_first = !self.has_looked.swap(true, Relaxed) || is_first;
        match is_first || self.every_batch {
            true => look(batch, &self.checks, Some(indices), dataset, is_first),
            false => Ok(()),
        }
    }
}

/// Without `indices` a sample's index is its place in the batch. Values on a GPU are looked at if `copies`.
fn look(
    batch: &impl Tensors,
    checks: &[Check],
    indices: Option<&[usize]>,
    dataset: &str,
    copies: bool,
) -> Result<(), DataError> {
    let tensors = batch.tensors();
    // A rank without a share of the batch has none of its samples.
    let may_be_empty = indices.is_some_and(<[usize]>::is_empty);
    for (place, check) in checks.iter().enumerate() {
        let unexpected = |index, found, expected| DataError::Unexpected {
            dataset: dataset.to_owned(),
            index,
            tensor: check.name.clone(),
            found,
            expected,
        };
        let Some(tensor) = tensors.get(place) else {
            let (found, expected) = (tensors.len(), checks.len());
            return Err(unexpected(
                None,
                format!("is missing: the batch has {found} of {expected} tensors"),
                "one for each check".to_owned(),
            ));
        };
        check.look(tensor, may_be_empty, copies).map_err(|fault| {
            let sample = |row: usize| match indices {
                None => Some(row),
                Some(all) if tensor.dims().first() == Some(&all.len()) => all.get(row).copied(),
                Some(_) => None,
            };
            unexpected(fault.row.and_then(sample), fault.found, fault.expected)
        })?;
    }
    Ok(())
}
