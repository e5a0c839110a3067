//! What batches must be, as their user declares it.

mod bounds;
mod declared;
mod fault;
mod remedy;
mod shape;
mod values;

pub use declared::Check;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::Tensors;
use crate::error::{DataError, Result};

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
    Ok(look(batch, checks, None, || "the batch".to_owned(), true)?)
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
        dataset: impl Fn() -> String,
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
    dataset: impl Fn() -> String,
    copies: bool,
) -> Result<(), DataError> {
    let tensors = batch.tensors();
    // A rank without a share of the batch has none of its samples.
    let may_be_empty = indices.is_some_and(<[usize]>::is_empty);
    for (place, check) in checks.iter().enumerate() {
        let unexpected = |index, found, expected| DataError::Unexpected {
            dataset: dataset(),
            index,
            tensor: check.name().to_owned(),
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
