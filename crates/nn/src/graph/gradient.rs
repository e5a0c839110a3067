//! A gradient that one operation hands to another.

use candle_core::{Result, Storage, Tensor};

use crate::bias::add_to_rows;
use crate::kernel::in_range;

/// A gradient on its way.
pub struct Gradient {
    pub tensor: Tensor,
    /// Whether no other tensor that is still used shares its storage, so that it may be changed.
    pub is_alone: bool,
}

impl Gradient {
    /// A gradient whose storage no other tensor shares.
    pub fn alone(tensor: Tensor) -> Self {
        let is_alone = true;
        Self { tensor, is_alone }
    }

    /// The sum, in the place of one of the two where that may be changed.
    pub fn plus(self, other: Self) -> Result<Self> {
        let can_change = |it: &Self| it.is_alone && it.tensor.is_contiguous();
        let (sum, part) = match (can_change(&self), can_change(&other)) {
            (true, _) => (self.tensor, other.tensor),
            (false, true) => (other.tensor, self.tensor),
            (false, false) => {
                in_range("gradient", [&self.tensor])?;
                return Ok(Self::alone((self.tensor + other.tensor)?));
            }
        };
        let row = sum.flatten_all()?.unsqueeze(0)?;
        let row = add_to_rows(row, &part.flatten_all()?)?;
        Ok(Self::alone(row.reshape(sum.shape())?))
    }
}

/// Where a tensor's storage is. Tensors that share it have the same address.
pub fn address(tensor: &Tensor) -> *const Storage {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref(&*storage)
}
