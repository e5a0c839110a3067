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
        None if in_place => into.inplace_op1(&Scale { keep }),
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

struct Scale {
    keep: f64,
}

impl InplaceOp1 for Scale {
    fn name(&self) -> &'static str {
        "scale-in-place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        cpu::scale(self, storage, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        cuda::scale(self, storage, layout)
    }
}

struct Blend {
    keep: f64,
    add: f64,
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
        cuda::blend(self, into, from, (into_layout, from_layout))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::cpu::{CHUNK, SHARED};
    use candle_core::{DType, Device};

    fn values(tensor: &Tensor) -> Vec<f64> {
        let flat = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
        flat.to_vec1().unwrap()
    }

    #[test]
    fn blends_each_pair_of_types() {
        for (into, from) in [
            (DType::F32, DType::F32),
            (DType::F64, DType::F64),
            (DType::F32, DType::F16),
            (DType::F32, DType::BF16),
        ] {
            let buffer = Var::ones((2, 3), into, &Device::Cpu).unwrap();
            let added = Tensor::arange(0f32, 6., &Device::Cpu).unwrap();
            let added = added.reshape((2, 3)).unwrap().to_dtype(from).unwrap();
            blend(&buffer, 0.5, 2., Some(&added)).unwrap();
            assert_eq!(values(&buffer), [0.5, 2.5, 4.5, 6.5, 8.5, 10.5]);
            blend(&buffer, 2., 0., None).unwrap();
            assert_eq!(values(&buffer), [1., 5., 9., 13., 17., 21.]);
        }
    }

    #[test]
    fn threads_share_large_tensors() {
        let len = SHARED + CHUNK + 17;
        let buffer = Var::ones(len, DType::F64, &Device::Cpu).unwrap();
        let added = Tensor::arange(0f64, len as f64, &Device::Cpu).unwrap();
        blend(&buffer, 0.5, 2., Some(&added)).unwrap();
        let expected: Vec<f64> = (0..len).map(|i| 0.5 + 2. * i as f64).collect();
        assert_eq!(values(&buffer), expected);
    }

    #[test]
    fn takes_strided_and_shifted_sources() {
        let buffer =
            Var::from_tensor(&Tensor::full(f32::NAN, (3, 2), &Device::Cpu).unwrap()).unwrap();
        let source = Tensor::arange(0f32, 8., &Device::Cpu).unwrap();
        let source = source.reshape((2, 4)).unwrap().narrow(1, 1, 3).unwrap();
        // With `keep` 0 the old values, NaN, do not count.
        blend(&buffer, 0., 1., Some(&source.t().unwrap())).unwrap();
        assert_eq!(values(&buffer), [1., 5., 2., 6., 3., 7.]);
        buffer
            .set(&(buffer.as_detached_tensor() / 0.).unwrap())
            .unwrap();
        blend(&buffer, 0., 0.5, Some(&source.t().unwrap())).unwrap();
        assert_eq!(values(&buffer), [0.5, 2.5, 1., 3., 1.5, 3.5]);
    }

    #[test]
    fn refuses_integers() {
        let buffer = Var::zeros(2, DType::F32, &Device::Cpu).unwrap();
        let source = Tensor::new(&[1u32, 2], &Device::Cpu).unwrap();
        let error = blend(&buffer, 0., 1., Some(&source)).unwrap_err();
        assert!(error.to_string().contains("U32"), "{error}");
    }
}
