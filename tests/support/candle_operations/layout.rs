use std::fmt;

use candle_core::{D, Result, Tensor};

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Contiguous,
    /// The last two dimensions lie the other way around. A vector is every second element of memory.
    Transposed,
    /// All but the first and last entry of the first dimension: contiguous, but not from the start of memory.
    Narrowed,
    /// The first dimension has one entry, which is repeated.
    Broadcast,
}

pub const LAYOUTS: [Layout; 4] = [
    Layout::Contiguous,
    Layout::Transposed,
    Layout::Narrowed,
    Layout::Broadcast,
];

impl Layout {
    /// The shape of the Var that [`view`](Self::view) makes an operand of this shape of.
    pub fn of_var(self, dims: &[usize]) -> Vec<usize> {
        let mut dims = dims.to_vec();
        match self {
            Self::Contiguous => {}
            Self::Transposed if dims.len() == 1 => dims.push(2),
            Self::Transposed => {
                let last = dims.len() - 1;
                dims.swap(last - 1, last);
            }
            Self::Narrowed => dims[0] += 2,
            Self::Broadcast => dims[0] = 1,
        }
        dims
    }

    pub fn view(self, var: &Tensor, dims: &[usize]) -> Result<Tensor> {
        match self {
            Self::Contiguous => Ok(var.clone()),
            Self::Transposed if dims.len() == 1 => var.narrow(1, 1, 1)?.squeeze(1),
            Self::Transposed => var.transpose(D::Minus2, D::Minus1),
            Self::Narrowed => var.narrow(0, 1, dims[0]),
            Self::Broadcast => var.broadcast_as(dims),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Contiguous => "contiguous",
            Self::Transposed => "transposed",
            Self::Narrowed => "narrowed",
            Self::Broadcast => "broadcast",
        })
    }
}
