//! Element types, and types for computations.

use std::ops::{AddAssign, Mul};

use half::{bf16, f16};

use crate::status::not_modelled;

/// A type for computations.
pub trait Compute: Copy + Default + PartialEq + AddAssign + Mul<Output = Self> {
    fn from_f64(value: f64) -> Self;
    fn from_f32(value: f32) -> Self;
    fn into_f64(self) -> f64;
    fn into_f32(self) -> f32;
}

impl Compute for f32 {
    fn from_f64(value: f64) -> f32 {
        value as f32
    }
    fn from_f32(value: f32) -> f32 {
        value
    }
    fn into_f64(self) -> f64 {
        self.into()
    }
    fn into_f32(self) -> f32 {
        self
    }
}

impl Compute for f64 {
    fn from_f64(value: f64) -> f64 {
        value
    }
    fn from_f32(value: f32) -> f64 {
        value.into()
    }
    fn into_f64(self) -> f64 {
        self
    }
    fn into_f32(self) -> f32 {
        self as f32
    }
}

/// A type for stored operands.
pub trait Element: Copy {
    fn load<C: Compute>(self) -> C;
    fn narrow<C: Compute>(value: C) -> Self;
}

impl Element for f64 {
    fn load<C: Compute>(self) -> C {
        C::from_f64(self)
    }
    fn narrow<C: Compute>(value: C) -> f64 {
        value.into_f64()
    }
}

impl Element for f32 {
    fn load<C: Compute>(self) -> C {
        C::from_f32(self)
    }
    fn narrow<C: Compute>(value: C) -> f32 {
        value.into_f32()
    }
}

impl Element for f16 {
    fn load<C: Compute>(self) -> C {
        C::from_f32(self.to_f32())
    }
    fn narrow<C: Compute>(value: C) -> f16 {
        f16::from_f32(value.into_f32())
    }
}

impl Element for bf16 {
    fn load<C: Compute>(self) -> C {
        C::from_f32(self.to_f32())
    }
    fn narrow<C: Compute>(value: C) -> bf16 {
        bf16::from_f32(value.into_f32())
    }
}

/// A `cudaDataType` that is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    F32,
    F64,
    F16,
    Bf16,
}

impl DataType {
    pub fn decode(code: u32) -> DataType {
        match code {
            0 => DataType::F32,
            1 => DataType::F64,
            2 => DataType::F16,
            14 => DataType::Bf16,
            _ => not_modelled(&format!("cuBLAS with cudaDataType {code}")),
        }
    }

    /// The type of the scalars for a `cublasComputeType_t`. Sums of 16-bit numbers are computed in `f32` in any case.
    pub fn of_compute_type(code: u32) -> DataType {
        match code {
            64 | 65 => DataType::F16,
            68 | 69 | 74 | 75 | 77 | 78 => DataType::F32,
            70 | 71 => DataType::F64,
            _ => not_modelled(&format!("cuBLAS with cublasComputeType_t {code}")),
        }
    }

    pub fn bytes(self) -> u64 {
        match self {
            DataType::F16 | DataType::Bf16 => 2,
            DataType::F32 => 4,
            DataType::F64 => 8,
        }
    }

    /// Reads one number.
    ///
    /// # Safety
    /// The address holds a number of this type.
    pub unsafe fn read<C: Compute>(self, address: u64) -> C {
        // SAFETY: by contract.
        unsafe {
            match self {
                DataType::F32 => (address as *const f32).read_unaligned().load(),
                DataType::F64 => (address as *const f64).read_unaligned().load(),
                DataType::F16 => (address as *const f16).read_unaligned().load(),
                DataType::Bf16 => (address as *const bf16).read_unaligned().load(),
            }
        }
    }

    /// Rounds to this type and writes.
    ///
    /// # Safety
    /// The address has room for a number of this type.
    pub unsafe fn write<C: Compute>(self, address: u64, value: C) {
        // SAFETY: by contract.
        unsafe {
            match self {
                DataType::F32 => (address as *mut f32).write_unaligned(f32::narrow(value)),
                DataType::F64 => (address as *mut f64).write_unaligned(f64::narrow(value)),
                DataType::F16 => (address as *mut f16).write_unaligned(f16::narrow(value)),
                DataType::Bf16 => (address as *mut bf16).write_unaligned(bf16::narrow(value)),
            }
        }
    }
}
