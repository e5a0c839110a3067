use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType};
use half::{bf16, f16};

/// Numbers of one of the types that parameters, gradients and moments have.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

/// The same, to be changed.
#[derive(Debug)]
pub enum ValuesMut<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    F16(&'a mut [f16]),
    BF16(&'a mut [bf16]),
}

/// Does the same to whichever it is.
macro_rules! each {
    ($type:ident, $values:expr, $inner:ident => $do:expr) => {
        match $values {
            $type::F32($inner) => $do,
            $type::F64($inner) => $do,
            $type::F16($inner) => $do,
            $type::BF16($inner) => $do,
        }
    };
}

/// The numbers of a storage, if it has floating-point ones.
macro_rules! floats {
    ($storage:expr) => {
        match $storage {
            CpuStorage::F32(values) => Ok(Self::F32(values)),
            CpuStorage::F64(values) => Ok(Self::F64(values)),
            CpuStorage::F16(values) => Ok(Self::F16(values)),
            CpuStorage::BF16(values) => Ok(Self::BF16(values)),
            other => Err(other.dtype()),
        }
    };
}

impl<'a> Values<'a> {
    pub fn of(storage: &'a CpuStorage) -> Result<Self, DType> {
        floats!(storage)
    }

    pub fn len(&self) -> usize {
        each!(Self, self, values => values.len())
    }

    /// From `start` on; empty beyond the end.
    pub fn from(self, start: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(values.get(start..).unwrap_or_default()),
            Self::F64(values) => Self::F64(values.get(start..).unwrap_or_default()),
            Self::F16(values) => Self::F16(values.get(start..).unwrap_or_default()),
            Self::BF16(values) => Self::BF16(values.get(start..).unwrap_or_default()),
        }
    }
}

impl<'a> ValuesMut<'a> {
    pub fn of(storage: &'a mut CpuStorage) -> Result<Self, DType> {
        floats!(storage)
    }

    pub fn len(&self) -> usize {
        each!(Self, self, values => values.len())
    }

    pub fn is_f64(&self) -> bool {
        matches!(self, Self::F64(_))
    }

    pub fn as_ref(&self) -> Values<'_> {
        match self {
            Self::F32(values) => Values::F32(values),
            Self::F64(values) => Values::F64(values),
            Self::F16(values) => Values::F16(values),
            Self::BF16(values) => Values::BF16(values),
        }
    }

    pub fn as_mut(&mut self) -> ValuesMut<'_> {
        match self {
            Self::F32(values) => ValuesMut::F32(values),
            Self::F64(values) => ValuesMut::F64(values),
            Self::F16(values) => ValuesMut::F16(values),
            Self::BF16(values) => ValuesMut::BF16(values),
        }
    }

    /// Cuts the first `count` values off, or all there are.
    pub fn take(&mut self, count: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(take(values, count)),
            Self::F64(values) => Self::F64(take(values, count)),
            Self::F16(values) => Self::F16(take(values, count)),
            Self::BF16(values) => Self::BF16(take(values, count)),
        }
    }
}

/// Cuts the first `count` elements off, or all there are.
pub fn take<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    let count = count.min(slice.len());
    let (head, tail) = std::mem::take(slice).split_at_mut(count);
    *slice = tail;
    head
}
