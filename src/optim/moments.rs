use candle_core::DType;

/// How an optimizer keeps its moments; for [`FusedBuilder::moments`](super::FusedBuilder::moments).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Moments {
    /// In this type: `F32` or `BF16`, and `F64` for f64 parameters.
    Float(DType),
    /// In 8 bits: 1.016 bytes per element.
    ///
    /// After Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861): each block of 256 elements
    /// has its largest element in f32, and a byte for each element in the dynamic tree code, with a sign for a first moment and
    /// without for a second. Other than there, the sign of the largest element is kept with it, so that it is exact; moments are rounded
    /// at random, because 8 bits cannot tell the change of a step apart; and no second moment becomes 0 that was not, because a division
    /// by it would make a step of any size (in blocks whose largest element is at least 1e-30).
    ///
    /// Parameters with fewer than 4,096 elements keep f32, as in the paper; so norms and biases do. Adafactor's state keeps its type.
    EightBit,
}

impl From<DType> for Moments {
    fn from(dtype: DType) -> Self {
        Self::Float(dtype)
    }
}
