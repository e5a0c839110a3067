use candle_core::{Shape, Tensor};

use super::rows_at_once;

/// How a kernel's work is cut into blocks of rows.
pub struct Plan {
    /// Number of rows. The last one may be shorter than the others.
    pub rows: usize,
    /// Number of rows of a block. It does not depend on the number of threads, so neither do sums.
    pub at_once: usize,
    pub inputs: Vec<Extent>,
    /// More elements than those of the shape are parts of sums: they are added up to one tensor, part by part.
    pub outputs: Vec<(Shape, Extent)>,
    /// Whether the outputs are of the type of sums. Otherwise they are of the type of the last input.
    pub is_wide: bool,
}

/// What a block has of a tensor.
#[derive(Debug, Clone, Copy)]
pub enum Extent {
    /// This many elements for each row.
    Row(usize),
    /// This many elements for each block, of an output.
    Block(usize),
    /// The whole tensor, of an input.
    All,
}

impl Plan {
    /// An output of the shape of `xs`, computed by rows of `width` elements.
    pub fn of_rows(xs: &Tensor, width: usize, inputs: impl Into<Vec<Extent>>) -> Self {
        Self {
            rows: xs.elem_count().div_ceil(width.max(1)),
            at_once: rows_at_once(width),
            inputs: inputs.into(),
            outputs: vec![(xs.shape().clone(), Extent::Row(width))],
            is_wide: false,
        }
    }

    pub fn blocks(&self) -> usize {
        self.rows.div_ceil(self.at_once.max(1))
    }
}
