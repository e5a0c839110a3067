use candle_core::Layout;

/// The largest number of axes, after merging, that the kernels can read.
pub const MAX_RANK: usize = 8;

/// The layout of a strided tensor for the kernels. Axes of one element are left out, and neighbours that can be read as one axis are
/// merged. A contiguous tensor has no axes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axes {
    pub rank: usize,
    pub sizes: [usize; MAX_RANK],
    pub strides: [usize; MAX_RANK],
}

impl Axes {
    /// `Err` with the number of axes if there are too many.
    pub fn of(layout: &Layout) -> std::result::Result<Self, usize> {
        let mut axes = Self {
            rank: 0,
            sizes: [1; MAX_RANK],
            strides: [0; MAX_RANK],
        };
        // The axis that the next one may merge into.
        let mut last: Option<(usize, usize)> = None;
        let real = layout.dims().iter().zip(layout.stride());
        for (&size, &stride) in real.filter(|(size, _)| **size != 1) {
            let size = match last {
                Some((outer, outer_stride)) if outer_stride == size * stride => outer * size,
                _ => {
                    axes.rank += last.is_some() as usize;
                    size
                }
            };
            last = Some((size, stride));
            // Axes beyond the limit are only counted.
            if let Some(into) = axes.sizes.get_mut(axes.rank) {
                *into = size;
            }
            if let Some(into) = axes.strides.get_mut(axes.rank) {
                *into = stride;
            }
        }
        axes.rank += last.is_some() as usize;
        if axes.rank == 1 && axes.strides.first() == Some(&1) {
            axes.rank = 0;
        }
        match axes.rank <= MAX_RANK {
            true => Ok(axes),
            false => Err(axes.rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Tensor};

    fn axes(tensor: &Tensor) -> Vec<(usize, usize)> {
        let axes = Axes::of(tensor.layout()).unwrap();
        let pairs = axes.sizes.into_iter().zip(axes.strides);
        pairs.take(axes.rank).collect()
    }

    #[test]
    fn neighbours_are_merged() {
        let tensor = Tensor::zeros((2, 3, 4, 5), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(axes(&tensor), []);
        assert_eq!(axes(&tensor.narrow(0, 1, 1).unwrap()), []);
        assert_eq!(axes(&tensor.t().unwrap()), [(6, 20), (5, 1), (4, 5)]);
        assert_eq!(axes(&tensor.narrow(3, 1, 2).unwrap()), [(24, 5), (2, 1)]);
        let one = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(axes(&one.broadcast_as((2, 3)).unwrap()), [(6, 0)]);
        assert_eq!(axes(&one.reshape(()).unwrap()), []);
    }

    #[test]
    fn too_many_are_counted() {
        let tensor = Tensor::zeros(vec![2; 10], DType::F32, &Device::Cpu).unwrap();
        let turned = tensor.permute(vec![9, 8, 7, 6, 5, 4, 3, 2, 1, 0]).unwrap();
        assert_eq!(Axes::of(turned.layout()), Err(10));
    }
}
