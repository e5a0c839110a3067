//! One pass in place for `keep · into + add · from`: accumulated gradients, averages of parameters, and sums of ranks.

#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "launches kernels")]
mod cuda;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Error, InplaceOp1, InplaceOp2, Layout, Result, Tensor};

use super::cpu::{CHUNK, Column, Gradient, Real, in_blocks, in_stretches, is_shared, reals};

const NAME: &str = "blend-in-place";

/// `into = keep · into + add · from`, in place. With `keep` 0 the old values are not read; without `from` they are only scaled.
///
/// `into` is contiguous, f32 or f64, and may be a part of a larger tensor. It may also be bf16 or f16, with `keep` 0 and `from` in f32. `from` has the same shape, any strides, and the same type or, for f32, also f16 or bf16. On the
/// CPU and on CUDA this is one pass without a temporary. Other devices use candle's operations.
pub(crate) fn blend(into: &Tensor, keep: f64, add: f64, from: Option<&Tensor>) -> Result<()> {
    let is_cuda = cfg!(feature = "cuda") && into.device().is_cuda();
    let in_place = is_cuda || into.device().is_cpu();
    match from {
        // The kernels cannot read all layouts.
        Some(from) if is_cuda && Axes::of(from.layout()).is_err() => {
            into.inplace_op2(&from.contiguous()?, &Blend { keep, add })
        }
        Some(from) if in_place => into.inplace_op2(from, &Blend { keep, add }),
        None if in_place => into.inplace_op1(&Blend { keep, add }),
        Some(from) => {
            let added = (from.to_dtype(into.dtype())? * add)?;
            match keep {
                0. => set(into, &added),
                _ => set(into, &((into.detach() * keep)? + added)?),
            }
        }
        None => set(into, &(into.detach() * keep)?),
    }
}

/// Copies values in place.
fn set(into: &Tensor, values: &Tensor) -> Result<()> {
    let (len, values) = (into.elem_count(), values.contiguous()?);
    into.reshape(len)?.slice_set(&values.reshape(len)?, 0, 0)
}

struct Blend {
    keep: f64,
    add: f64,
}

/// Multiplies by `keep` only.
impl InplaceOp1 for Blend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, into: &mut CpuStorage, layout: &Layout) -> Result<()> {
        blend_cpu(self, (into, layout), None)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, into: &mut CudaStorage, layout: &Layout) -> Result<()> {
        cuda::blend(self, (into, layout), None)
    }
}

impl InplaceOp2 for Blend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        into: &mut CpuStorage,
        into_layout: &Layout,
        from: &CpuStorage,
        from_layout: &Layout,
    ) -> Result<()> {
        blend_cpu(self, (into, into_layout), Some((from, from_layout)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        into: &mut CudaStorage,
        into_layout: &Layout,
        from: &CudaStorage,
        from_layout: &Layout,
    ) -> Result<()> {
        cuda::blend(self, (into, into_layout), Some((from, from_layout)))
    }
}

/// Without `from` it only multiplies by `keep`.
fn blend_cpu(
    op: &Blend,
    into: (&mut CpuStorage, &Layout),
    from: Option<(&CpuStorage, &Layout)>,
) -> Result<()> {
    let dtype = into.0.dtype();
    match (dtype, from.map_or(dtype, |(from, _)| from.dtype())) {
        (DType::F32, DType::F32 | DType::F16 | DType::BF16) => run::<f32>(op, into, from),
        (DType::F64, DType::F64) => run::<f64>(op, into, from),
        (DType::BF16 | DType::F16, DType::F32) if op.keep == 0. => narrow(op.add, into, from),
        (_, from) => Err(unsupported(from)),
    }
}

fn run<C: Real>(
    op: &Blend,
    (into, layout): (&mut CpuStorage, &Layout),
    from: Option<(&CpuStorage, &Layout)>,
) -> Result<()> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let into = reals::<C>(into).zip(range);
    let into = into.and_then(|(into, range)| into.get_mut(range));
    let into = into.ok_or_else(out_of_bounds)?;
    let (keep, add) = (C::from_f64(op.keep), C::from_f64(op.add));
    let Some((from, layout)) = from else {
        into.iter_mut().for_each(|value| *value *= keep);
        return Ok(());
    };
    let from = Gradient::<C>::new(from, layout, 1., f64::INFINITY)?;
    let blend = |into: &mut [C], from: &[C]| {
        let pairs = into.iter_mut().zip(from);
        // Not `0 · old + …`: the old values may be infinite or NaN.
        if op.keep == 0. && op.add == 1. {
            pairs.for_each(|(into, from)| *into = *from);
        } else if op.keep == 0. {
            pairs.for_each(|(into, from)| *into = add * *from);
        } else {
            pairs.for_each(|(into, from)| *into = keep * *into + add * *from);
        }
    };
    let is_shared = is_shared(into.len());
    in_stretches(into, CHUNK, is_shared, &|start, into| {
        if let Some(from) = from.slice(start) {
            return blend(into, from);
        }
        in_blocks(0..into.len(), &mut |at, block| {
            from.load(start + at, block);
            blend(into.get_mut(at..).unwrap_or_default(), block);
        });
    });
    Ok(())
}

/// A multiple in bf16 or f16, rounded to nearest.
fn narrow(
    add: f64,
    (into, layout): (&mut CpuStorage, &Layout),
    from: Option<(&CpuStorage, &Layout)>,
) -> Result<()> {
    let offsets = layout.contiguous_offsets();
    let column = Column::<f32>::of(into).zip(offsets).zip(from);
    let ((mut into, (start, end)), (from, layout)) = column.ok_or_else(out_of_bounds)?;
    let from = Gradient::<f32>::new(from, layout, 1., f64::INFINITY)?;
    let add = add as f32;
    into.take(start);
    in_blocks(0..end - start, &mut |at, block| {
        from.load(at, block);
        block.iter_mut().for_each(|value| *value *= add);
        into.take(block.len()).store(block);
    });
    Ok(())
}

fn out_of_bounds() -> Error {
    Error::RequiresContiguous { op: NAME }.bt()
}

fn unsupported(dtype: DType) -> Error {
    Error::UnsupportedDTypeForOp(dtype, NAME).bt()
}

/// The largest number of axes, after merging, that the kernels can read.
pub const MAX_RANK: usize = 8;

/// The layout of a strided tensor for the kernels: without axes of one element, neighbours merged, none if it is contiguous.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
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
