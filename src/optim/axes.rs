use candle_core::Layout;

/// The largest number of axes, after merging, that the kernels can read.
pub const MAX_RANK: usize = 8;

/// The layout of a strided tensor for the kernels: without axes of one element, neighbours merged, none if it is contiguous.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Axes {
    pub rank: usize,
    pub sizes: [usize; MAX_RANK],
    pub strides: [usize; MAX_RANK],
}

impl Axes {
    /// `Err` with the number of axes if there are too many.
    pub fn of(layout: &Layout) -> std::result::Result<Self, usize> {
        let mut axes = Self::default();
        let real = layout.dims().iter().zip(layout.stride());
        for (&size, &stride) in real.filter(|(size, _)| **size != 1) {
            if let Some((outer, outer_stride)) = axes.axis(axes.rank.wrapping_sub(1))
                && *outer_stride == size * stride
            {
                (*outer, *outer_stride) = (*outer * size, stride);
                continue;
            }
            // Axes beyond the limit are only counted.
            if let Some((into, into_stride)) = axes.axis(axes.rank) {
                (*into, *into_stride) = (size, stride);
            }
            axes.rank += 1;
        }
        if axes.rank == 1 && axes.strides.first() == Some(&1) {
            axes.rank = 0;
        }
        match axes.rank <= MAX_RANK {
            true => Ok(axes),
            false => Err(axes.rank),
        }
    }
    fn axis(&mut self, index: usize) -> Option<(&mut usize, &mut usize)> {
        Some((self.sizes.get_mut(index)?, self.strides.get_mut(index)?))
    }
}
