use std::ops::RangeBounds;

use candle_core::{DType, Tensor};

use super::bounds::Bounds;
use super::fault::Fault;
use super::values::{self, Rules};
use super::{remedy, shape};

/// What one tensor of a batch must be.
///
/// A check by itself says that the tensor has elements; each method adds something. See [`check`](super::check()) and
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
        self.rules.bounds = Some(Bounds::new(range));
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

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Looks at dtype and shape, then at the values, those on a GPU only if `copies`.
    pub(super) fn look(
        &self,
        tensor: &Tensor,
        may_be_empty: bool,
        copies: bool,
    ) -> Result<(), Fault> {
        let found = tensor.dtype();
        if let Some(expected) = self.dtype.filter(|expected| *expected != found) {
            let remedy = remedy::dtype(found, expected);
            return Err(Fault::whole(
                format!("has dtype {}", found.as_str()),
                format!("{}; {remedy}", expected.as_str()),
            ));
        }
        if let Some(expected) = &self.shape {
            shape::look(tensor.dims(), expected)?;
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
