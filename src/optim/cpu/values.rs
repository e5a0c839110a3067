use candle_core::CpuStorage;
use half::{bf16, f16};

/// Numbers of one of the types that parameters, gradients and moments have.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

/// Mutable numbers of one of these types.
#[derive(Debug)]
pub enum ValuesMut<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    F16(&'a mut [f16]),
    BF16(&'a mut [bf16]),
}

/// Maps values of any type to others of the same type.
macro_rules! map {
    ($from:ident => $to:ident, $values:expr, $inner:ident => $do:expr) => {
        match $values {
            $from::F32($inner) => $to::F32($do),
            $from::F64($inner) => $to::F64($do),
            $from::F16($inner) => $to::F16($do),
            $from::BF16($inner) => $to::BF16($do),
        }
    };
}

/// The numbers of a storage; `None` if they are not floating-point.
macro_rules! floats {
    ($storage:expr) => {
        match $storage {
            CpuStorage::F32(values) => Some(Self::F32(values)),
            CpuStorage::F64(values) => Some(Self::F64(values)),
            CpuStorage::F16(values) => Some(Self::F16(values)),
            CpuStorage::BF16(values) => Some(Self::BF16(values)),
            _ => None,
        }
    };
}

impl<'a> Values<'a> {
    pub fn of(storage: &'a CpuStorage) -> Option<Self> {
        floats!(storage)
    }

    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::BF16(values) => values.len(),
        }
    }

    /// The values from `start` on; empty beyond the end.
    pub fn from(self, start: usize) -> Self {
        map!(Self => Self, self, values => values.get(start..).unwrap_or_default())
    }
}

impl<'a> ValuesMut<'a> {
    pub fn of(storage: &'a mut CpuStorage) -> Option<Self> {
        floats!(storage)
    }

    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    pub fn is_f64(&self) -> bool {
        matches!(self, Self::F64(_))
    }

    pub fn as_ref(&self) -> Values<'_> {
        map!(Self => Values, self, values => values)
    }

    pub fn as_mut(&mut self) -> ValuesMut<'_> {
        map!(Self => ValuesMut, self, values => values)
    }

    /// Splits off the first `count` values, or all if there are fewer.
    pub fn take(&mut self, count: usize) -> Self {
        map!(Self => Self, self, values => take(values, count))
    }
}

/// Splits off the first `count` elements, or all if there are fewer.
pub fn take<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    let count = count.min(slice.len());
    let (head, tail) = std::mem::take(slice).split_at_mut(count);
    *slice = tail;
    head
}
