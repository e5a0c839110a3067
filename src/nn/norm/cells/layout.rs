use candle_core::{Result, Tensor};

use crate::nn::norm::statistics_type;

/// A tensor of `outer` × `cells` × `inner` elements. A cell is what has one index in the middle.
#[derive(Debug, Clone, Copy)]
pub struct Cells {
    pub outer: usize,
    pub cells: usize,
    pub inner: usize,
}

impl Cells {
    /// Number of elements of a cell.
    pub fn len(self) -> usize {
        self.outer * self.inner
    }

    /// The parts of a cell, each contiguous.
    pub fn parts<T>(self, values: &[T], cell: usize) -> impl Iterator<Item = &[T]> {
        let parts = values.chunks(self.inner.max(1));
        parts.skip(cell).step_by(self.cells.max(1))
    }

    /// The tensor, and one value for each cell, in shapes that broadcast.
    pub fn broadcast(self, values: &Tensor, of_cells: &Tensor) -> Result<(Tensor, Tensor)> {
        let values = values.to_dtype(statistics_type(values.dtype()))?;
        let values = values.reshape((self.outer, self.cells, self.inner))?;
        Ok((values, of_cells.reshape((1, self.cells, 1))?))
    }
}
