use std::ops::{Bound, Range, RangeBounds};

use candle_core::{CpuStorage, DType, Device, Storage, Tensor, WithDType};
use half::{bf16, f16};
use num_traits::Bounded;

use super::fault::Fault;

/// The range that values must be in.
pub(super) type Bounds = (Bound<i64>, Bound<i64>);

/// What the values of a tensor must be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rules {
    pub(super) bounds: Option<Bounds>,
    /// Allowed outside of the bounds.
    pub(super) ignored: Option<i64>,
    pub(super) finite: bool,
    pub(super) varies: bool,
}

/// Looks at the values of a tensor that has some.
pub(super) fn look(tensor: &Tensor, rules: &Rules) -> Result<(), Fault> {
    if rules.bounds.is_none() && !rules.finite && !rules.varies {
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
    fn integers<T: WithDType + Bounded + Into<i64>>(&self, all: &[T]) -> Result<(), Fault> {
        let ignored = self.rules.ignored;
        let remedy = |bounds: &Bounds, values: &[T], value: i64| {
            let counts = values.iter().map(|value| (*value).into());
            let lowest = counts.filter(|value| ignored != Some(*value)).min();
            let lowest = lowest.unwrap_or(value);
            Some(of_integer(value, lowest, bounds, T::max_value().into()))
        };
        self.values(all, |_| true, T::into, |bound| bound, remedy)
    }

    fn floats<T: WithDType>(&self, all: &[T], is_finite: fn(T) -> bool) -> Result<(), Fault> {
        let remedy = |bounds: &Bounds, _: &[T], value: f64| {
            let is_pixel = end(bounds) == Some(2) && (1. ..=255.).contains(&value);
            is_pixel.then(|| "divide pixels by 255".to_owned())
        };
        self.values(all, is_finite, T::to_f64, |bound| bound as f64, remedy)
    }

    /// Looks at values as numbers that hold each of them: integers of 64 bits or floats of 64 bits. `remedy` says what to do about a value
    /// that is out of bounds.
    fn values<T: WithDType, N: Copy + PartialOrd>(
        &self,
        all: &[T],
        is_finite: impl Fn(T) -> bool,
        number: impl Fn(T) -> N,
        bound: impl Fn(i64) -> N,
        remedy: impl FnOnce(&Bounds, &[T], N) -> Option<String>,
    ) -> Result<(), Fault> {
        let values = all.get(self.range.clone()).unwrap_or_default();
        if self.rules.finite
            && let Some(place) = find(values, |value| !is_finite(value))
        {
            return Err(self.fault(values, place, |_| "finite values".to_owned()));
        }
        if let Some(bounds) = &self.rules.bounds {
            let (within, ignored) = (
                (bounds.0.map(&bound), bounds.1.map(&bound)),
                self.rules.ignored.map(&bound),
            );
            let is_bad = |value: T| {
                let value = number(value);
                !within.contains(&value) && ignored != Some(value)
            };
            if let Some(place) = find(values, is_bad) {
                return Err(self.fault(values, place, |value| {
                    let remedy = remedy(bounds, values, number(value));
                    let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
                    format!("values in {}{remedy}", text(bounds))
                }));
            }
        }
        self.variation(values)
    }

    /// Compares the values, and the rows, with the first.
    fn variation<T: WithDType>(&self, values: &[T]) -> Result<(), Fault> {
        let Some(first) = values.first().filter(|_| self.rules.varies) else {
            return Ok(());
        };
        if values.len() > 1 && values.iter().all(|value| value == first) {
            return Err(Fault::whole(
                format!("holds only {first}"),
                "values that differ; shuffle sorted samples, and look at what makes this tensor",
            ));
        }
        let rows = self.dims.first().copied().unwrap_or(1);
        let mut samples = values.chunks_exact(self.row());
        let first = samples.next();
        if rows > 1 && samples.all(|sample| Some(sample) == first) {
            return Err(Fault::whole(
                format!("holds {rows} samples that are all equal"),
                "samples that differ; look at what reads them",
            ));
        }
        Ok(())
    }

    /// Elements of a row.
    fn row(&self) -> usize {
        let sizes = self.dims.iter().skip(1);
        sizes.product::<usize>().max(1)
    }

    fn fault<T: WithDType>(
        &self,
        values: &[T],
        place: usize,
        expected: impl FnOnce(T) -> String,
    ) -> Fault {
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
            expected: expected(value),
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

/// The smallest integer in the range.
fn first(bounds: &Bounds) -> Option<i64> {
    match bounds.0 {
        Bound::Included(first) => Some(first),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => None,
    }
}

/// The smallest integer above the range.
fn end(bounds: &Bounds) -> Option<i64> {
    match bounds.1 {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(end),
        Bound::Unbounded => None,
    }
}

/// As Rust writes ranges.
fn text(bounds: &Bounds) -> String {
    let first = match bounds.0 {
        Bound::Included(first) => first.to_string(),
        Bound::Excluded(before) => format!("(above {before})"),
        Bound::Unbounded => String::new(),
    };
    match bounds.1 {
        Bound::Included(last) => format!("{first}..={last}"),
        Bound::Excluded(end) => format!("{first}..{end}"),
        Bound::Unbounded => format!("{first}.."),
    }
}

/// What to do about an integer outside of its range; `lowest` is the smallest one that counts.
fn of_integer(value: i64, lowest: i64, bounds: &Bounds, largest: i64) -> String {
    let first = first(bounds);
    let second = first.and_then(|first| first.checked_add(1));
    if end(bounds) == Some(value) && second == Some(lowest) {
        format!("they seem to count from {lowest}: subtract 1")
    } else if value == largest || first.is_some_and(|first| value < first) {
        format!("call `.ignore({value})` if it marks what does not count")
    } else {
        "the range must cover all classes, or the whole vocabulary with its added tokens".to_owned()
    }
}
