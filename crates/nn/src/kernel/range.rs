//! The limit of candle's CUDA kernels, which count elements in 32 bits: beyond it they read and write elsewhere, which ends the context, leave
//! elements out, or never end. What calls one with a tensor of any size asks here first.

use std::io;

use candle_core::{Device, Error, Result, Tensor};

/// More elements than a kernel can index: nothing was launched, and a smaller batch helps. It comes inside of candle's error.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{operation} on CUDA: {elements} {of} are more than its kernel can index")]
pub struct IndexRangeError {
    operation: &'static str,
    elements: usize,
    of: &'static str,
}

impl IndexRangeError {
    /// Inside an [`io::Error`]: of candle's variants that can hold any error, it is the one whose content can be downcast.
    pub(crate) fn of(operation: &'static str, elements: usize, of: &'static str) -> Error {
        Error::Io(io::Error::other(Self {
            operation,
            elements,
            of,
        }))
    }
}

/// Whether candle's kernels for a device can index so many elements.
pub fn is_in_range(device: &Device, elements: usize) -> bool {
    !device.is_cuda() || i32::try_from(elements).is_ok()
}

/// Fails if candle's kernels cannot index so many elements.
pub fn count_in_range(name: &'static str, device: &Device, elements: usize) -> Result<()> {
    match is_in_range(device, elements) {
        true => Ok(()),
        false => Err(IndexRangeError::of(name, elements, "elements")),
    }
}

/// Fails if candle's kernels cannot index the elements of one of these tensors.
pub fn in_range<'a>(
    name: &'static str,
    tensors: impl IntoIterator<Item = &'a Tensor>,
) -> Result<()> {
    let mut tensors = tensors.into_iter();
    tensors.try_for_each(|tensor| count_in_range(name, tensor.device(), tensor.elem_count()))
}
