//! The type suffixes of PTX.

/// A type suffix, such as `.u32` or `.bf16x2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// One bit per lane; a register of it is one 32-bit mask for the warp.
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    Bf16,
    F32,
    F64,
    F16x2,
    Bf16x2,
    /// Two 8-bit floats with four exponent bits, in 16 bits.
    E4m3x2,
    /// Two 8-bit floats with five exponent bits, in 16 bits.
    E5m2x2,
}

impl Type {
    /// The type that a suffix names, without its dot.
    pub fn parse(text: &str) -> Option<Type> {
        Some(match text {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "b16" => Type::B16,
            "b32" => Type::B32,
            "b64" => Type::B64,
            "u8" => Type::U8,
            "u16" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            "f32" => Type::F32,
            "f64" => Type::F64,
            "f16x2" => Type::F16x2,
            "bf16x2" => Type::Bf16x2,
            "e4m3x2" => Type::E4m3x2,
            "e5m2x2" => Type::E5m2x2,
            _ => return None,
        })
    }

    /// Bytes of one value; for a predicate, of the whole warp's mask.
    pub fn bytes(self) -> usize {
        match self {
            Type::B8 | Type::U8 | Type::S8 => 1,
            Type::B16
            | Type::U16
            | Type::S16
            | Type::F16
            | Type::Bf16
            | Type::E4m3x2
            | Type::E5m2x2 => 2,
            Type::Pred
            | Type::B32
            | Type::U32
            | Type::S32
            | Type::F32
            | Type::F16x2
            | Type::Bf16x2 => 4,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 8,
        }
    }

    /// Whether a value of this type is sign-extended.
    pub fn signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// Whether it is a scalar floating-point type.
    pub fn float(self) -> bool {
        matches!(self, Type::F16 | Type::Bf16 | Type::F32 | Type::F64)
    }

    /// Whether it is a pair of 16-bit floats in 32 bits.
    pub fn packed(self) -> bool {
        matches!(self, Type::F16x2 | Type::Bf16x2)
    }

    /// The untyped bits of `bytes` bytes.
    pub fn bits(bytes: usize) -> Type {
        match bytes {
            1 => Type::B8,
            2 => Type::B16,
            4 => Type::B32,
            _ => Type::B64,
        }
    }
}
