//! A gradient that one operation hands to another.

use candle_core::{Result, Shape, Storage, Tensor};

use crate::bias::add_to_rows;
use crate::kernel::{dense, in_range};

const NAME: &str = "gradient";

/// A part of a contiguous tensor: of each `period` elements, `len` from `start` on.
#[derive(Clone, Copy)]
pub struct Part {
    pub period: usize,
    pub start: usize,
    pub len: usize,
}

impl Part {
    fn is_apart(self, other: Self) -> bool {
        let ends_before = |a: Self, b: Self| a.start + a.len <= b.start;
        self.period == other.period && (ends_before(self, other) || ends_before(other, self))
    }
}

/// A gradient on its way.
pub struct Gradient {
    pub tensor: Tensor,
    /// Whether no other tensor that is still used shares its storage, so that it may be changed.
    pub is_alone: bool,
    /// Where it belongs in a tensor of this shape, if it is the gradient of a part.
    part: Option<(Part, Shape)>,
    /// The parts that it was made of, beside zeros.
    filled: Vec<Part>,
}

impl Gradient {
    /// A gradient whose storage no other tensor shares.
    pub fn alone(tensor: Tensor) -> Self {
        Self::new(tensor, true)
    }

    pub fn new(tensor: Tensor, is_alone: bool) -> Self {
        let (part, filled) = (None, Vec::new());
        Self {
            tensor,
            is_alone,
            part,
            filled,
        }
    }

    /// The gradient of a part of a tensor of this shape.
    pub fn of_part(self, part: Part, whole: Shape) -> Self {
        let part = Some((part, whole));
        Self { part, ..self }
    }

    /// The gradient of the whole tensor: zeros beside a part.
    pub fn spread(mut self) -> Result<Self> {
        let Some((part, whole)) = self.part.take() else {
            return Ok(self);
        };
        let zeros = Tensor::zeros(whole, self.tensor.dtype(), self.tensor.device())?;
        let mut spread = Self::alone(zeros);
        spread.put(part, &self.tensor)?;
        Ok(spread)
    }

    /// Fills a part that is zeros.
    fn put(&mut self, part: Part, gradient: &Tensor) -> Result<()> {
        in_range(NAME, [&self.tensor])?;
        let columns = self.tensor.reshape(((), part.period))?;
        let gradient = dense(NAME, gradient)?.reshape(((), part.len))?;
        columns.slice_set(&gradient, 1, part.start)?;
        self.filled.push(part);
        Ok(())
    }

    /// The sum, in the place of one of the two where that may be changed. `self` is of a whole tensor.
    pub fn plus(mut self, other: Self) -> Result<Self> {
        if let Some((part, _)) = other.part
            && !self.filled.is_empty()
            && self.filled.iter().all(|filled| filled.is_apart(part))
        {
            self.put(part, &other.tensor)?;
            return Ok(self);
        }
        let other = other.spread()?;
        let can_change = |it: &Self| it.is_alone && it.tensor.is_contiguous();
        let (sum, part) = match (can_change(&self), can_change(&other)) {
            (true, _) => (self.tensor, other.tensor),
            (false, true) => (other.tensor, self.tensor),
            (false, false) => {
                in_range(NAME, [&self.tensor])?;
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
