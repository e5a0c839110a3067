mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Tensor, Var};

use super::axes::Axes;

/// `into = keep · into + add · from`, in place. With `keep` 0 the old values are not read; without `from` they are only scaled.
///
/// `into` is contiguous, f32 or f64. `from` has the same shape, any strides, and the same type or, for f32, also f16 or bf16. On the CPU
/// and on CUDA this is one pass without a temporary. Other devices use candle's operations, with temporaries of `into`'s size.
pub(crate) fn blend(into: &Var, keep: f64, add: f64, from: Option<&Tensor>) -> Result<()> {
    let is_cuda = cfg!(feature = "cuda") && into.device().is_cuda();
    let in_place = is_cuda || into.device().is_cpu();
    match from {
        // The kernels cannot read all layouts.
        Some(from) if is_cuda && Axes::of(from.layout()).is_err() => {
            into.inplace_op2(&from.contiguous()?, &Blend { keep, add })
        }
        Some(from) if in_place => into.inplace_op2(from, &Blend { keep, add }),
        None if in_place => into.inplace_op1(&Blend { keep, add: 0. }),
        Some(from) => {
            let added = (from.to_dtype(into.dtype())? * add)?;
            match keep {
                0. => into.set(&added),
                _ => into.set(&((into.as_detached_tensor() * keep)? + added)?),
            }
        }
        None => into.set(&(into.as_detached_tensor() * keep)?),
    }
}

struct Blend {
    keep: f64,
    add: f64,
}

/// Multiplies by `keep` only.
impl InplaceOp1 for Blend {
    fn name(&self) -> &'static str {
        "scale-in-place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        cpu::scale(self, storage, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        cuda::blend(self, (storage, layout), None)
    }
}

impl InplaceOp2 for Blend {
    fn name(&self) -> &'static str {
        "blend-in-place"
    }

    fn cpu_fwd(
        &self,
        into: &mut CpuStorage,
        into_layout: &Layout,
        from: &CpuStorage,
        from_layout: &Layout,
    ) -> Result<()> {
        cpu::blend(self, into, from, (into_layout, from_layout))
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

fn out_of_bounds() -> candle_core::Error {
    candle_core::Error::RequiresContiguous {
        op: "blend-in-place",
    }
    .bt()
}

fn unsupported(dtype: candle_core::DType) -> candle_core::Error {
    candle_core::Error::UnsupportedDTypeForOp(dtype, "blend-in-place").bt()
}
