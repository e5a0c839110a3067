use std::ops::{Bound, Range, RangeBounds};

use candle_core::{CpuStorage, DType, Device, Storage, Tensor, WithDType};
use half::{bf16, f16};

/// A tensor is not what was declared.
#[derive(Debug)]
pub(super) struct Fault {
    /// The row of its first dimension, if it is one row's fault.
    pub(super) row: Option<usize>,
    pub(super) found: String,
    pub(super) expected: String,
}

impl Fault {
    /// A fault of the whole tensor.
    pub(super) fn whole(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            row: None,
            found: found.into(),
            expected: expected.into(),
        }
    }
}

/// The range that values must be in.
pub(super) type Bounds = (Bound<i64>, Bound<i64>);

/// What the values of a tensor must be.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    /// The range that values must be in, and as it is written.
    pub(super) bounds: Option<(Bounds, String)>,
    /// Allowed outside of the bounds.
    pub(super) ignored: Option<i64>,
    pub(super) finite: bool,
}

/// Looks at the values of a tensor that has some.
pub(super) fn look(tensor: &Tensor, rules: &Rules) -> Result<(), Fault> {
    if rules.bounds.is_none() && !rules.finite {
        return Ok(());
    }
    let unread = |reason: String| Fault::whole(format!("cannot be read: {reason}"), "its values");
    let tensor = readable(tensor).map_err(|error| unread(error.to_string()))?;
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
    else {
        return Err(unread(format!("it is at {:?}", tensor.device())));
    };
    let look = Look {
        dims: tensor.dims(),
        range: start..end,
        rules,
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
    rules: &'a Rules,
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
        if self.rules.finite
            && let Some(place) = find(values, |value| !is_finite(value))
        {
            return Err(self.fault(values, place, "finite values".to_owned()));
        }
        if let Some((bounds, text)) = &self.rules.bounds {
            let (within, ignored) = (
                (bounds.0.map(&bound), bounds.1.map(&bound)),
                self.rules.ignored.map(&bound),
            );
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
        let mut rest = place;
        let mut at: Vec<_> = self
            .dims
            .iter()
            .rev()
            .map(|size| {
                let index = rest % (*size).max(1);
                rest /= (*size).max(1);
                index
            })
            .collect();
        at.reverse();
        let value = values.get(place).copied().unwrap_or_else(T::zero);
        let found = match at.is_empty() {
            true => format!("holds {value}"),
            false => format!("holds {value} at {at:?}"),
        };
        Fault {
            row: at.first().copied(),
            found,
            expected,
        }
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
