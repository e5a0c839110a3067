use candle_core::DType;

use super::code::Code;

/// The form of a tensor in an optimizer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// In its own shape and this type.
    Plain(DType),
    /// In blocks of 8 bits, as one row of bytes.
    Coded(Code),
}
