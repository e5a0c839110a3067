use std::cmp::Reverse;

use candle_core::{Layout, Result, Shape};

use super::gradient::Gradient;

/// A view that shows each element of a contiguous tensor once: by any number of reshapes and permutations.
pub struct View {
    /// The dimensions in the order in which they lie in memory.
    order: Vec<usize>,
    whole: Shape,
}

impl View {
    /// The layout of a tensor that shares the storage of a contiguous one of this shape, which begins at its start. `None` if it
    /// shows a part, or an element twice.
    pub fn new(layout: &Layout, whole: &Shape) -> Option<Self> {
        let extents: Vec<_> = layout.dims().iter().zip(layout.stride()).collect();
        let mut order: Vec<_> = extents.iter().copied().enumerate().collect();
        // The stride of a dimension of length 1 means nothing.
        order.sort_by_key(|&(_, (len, stride))| (*len > 1, Reverse(*stride)));
        let dense = order.iter().rev().try_fold(1, |step, (_, (len, stride))| {
            (**len <= 1 || **stride == step).then_some(step * *len)
        });
        let is_whole = dense == Some(whole.elem_count()) && layout.start_offset() == 0;
        (is_whole && whole.elem_count() > 0).then(|| Self {
            order: order.into_iter().map(|(dim, _)| dim).collect(),
            whole: whole.clone(),
        })
    }

    /// A gradient of the view as one of the tensor.
    pub fn back(&self, Gradient { tensor, is_alone }: Gradient) -> Result<Gradient> {
        let tensor = tensor
            .permute(self.order.as_slice())?
            .reshape(&self.whole)?;
        Ok(Gradient { tensor, is_alone })
    }
}
