use candle_core::utils::barrier_pool;
use candle_core::{CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Tensor, Var, WithDType};
use parking_lot::Mutex;

/// From this many elements on a tensor is shared out among threads, and how many one takes at a time: as candle does it.
const SHARED: usize = 64 * 1024;
const CHUNK: usize = 16 * 1024;

/// `into = keep · into + add · from`, in place; with `keep` 0 what stood there does not matter, and without `from` it is only
/// scaled.
///
/// `into` is contiguous, f32 or f64; `from` has its shape, any strides, and its type or, for f32, f16 or bf16. On the CPU this is
/// one pass without a temporary. On other devices it is candle's own operations, with temporaries of `into`'s size.
pub(crate) fn blend(into: &Var, keep: f64, add: f64, from: Option<&Tensor>) -> Result<()> {
    match from {
        Some(from) if into.device().is_cpu() => into.inplace_op2(from, &Blend { keep, add }),
        None if into.device().is_cpu() => into.inplace_op1(&Scale { keep }),
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
        fn scale<T: WithDType>(values: &mut [T], layout: &Layout, keep: f64) -> Result<()> {
            let keep = T::from_f64(keep);
            for value in contiguous(values, layout)? {
                *value *= keep;
            }
            Ok(())
        }
        match storage {
            CpuStorage::F32(values) => scale(values, layout, self.keep),
            CpuStorage::F64(values) => scale(values, layout, self.keep),
            other => Err(unsupported(other)),
        }
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
        use CpuStorage as S;
        let layouts = (into_layout, from_layout);
        match (into, from) {
            (S::F32(into), S::F32(from)) => self.run(into, from, layouts, |value| value),
            (S::F64(into), S::F64(from)) => self.run(into, from, layouts, |value| value),
            (S::F32(into), S::F16(from)) => self.run(into, from, layouts, |value| value.to_f32()),
            (S::F32(into), S::BF16(from)) => self.run(into, from, layouts, |value| value.to_f32()),
            (_, from) => Err(unsupported(from)),
        }
    }
}

impl Blend {
    #[inline]
    fn run<D: WithDType, S: Copy + Sync>(
        &self,
        into: &mut [D],
        from: &[S],
        (into_layout, from_layout): (&Layout, &Layout),
        convert: impl Fn(S) -> D + Copy + Sync,
    ) -> Result<()> {
        let into = contiguous(into, into_layout)?;
        let Some((start, end)) = from_layout.contiguous_offsets() else {
            let from = offsets(from_layout).filter_map(|offset| from.get(offset));
            self.blend(into, from.map(|&value| convert(value)));
            return Ok(());
        };
        let from = from.get(start..end).ok_or_else(out_of_bounds)?;
        if into.len() < SHARED {
            self.blend(into, from.iter().map(|&value| convert(value)));
            return Ok(());
        }
        let units = into.chunks_mut(CHUNK).zip(from.chunks(CHUNK));
        let units: Vec<_> = units.map(Mutex::new).collect();
        // candle's own threads: they are awake between its operations, which a second pool's would not be.
        barrier_pool().execute_chunked(units.len(), |range| {
            for unit in units.get(range).unwrap_or_default() {
                let (into, from) = &mut *unit.lock();
                self.blend(into, from.iter().map(|&value| convert(value)));
            }
        });
        Ok(())
    }

    #[inline]
    fn blend<D: WithDType>(&self, into: &mut [D], from: impl Iterator<Item = D>) {
        let (keep, add) = (D::from_f64(self.keep), D::from_f64(self.add));
        let pairs = into.iter_mut().zip(from);
        // Not `0 · old + …`: what a buffer holds from the window before may be infinite or not a number.
        if self.keep == 0. && self.add == 1. {
            pairs.for_each(|(into, from)| *into = from);
        } else if self.keep == 0. {
            pairs.for_each(|(into, from)| *into = add * from);
        } else {
            pairs.for_each(|(into, from)| *into = keep * *into + add * from);
        }
    }
}

/// Where a strided tensor's elements lie, in the order of its indices. candle's own walk is private to it, and its gradients
/// are almost always contiguous: `backward` adds each to a tensor of zeros.
fn offsets(layout: &Layout) -> impl Iterator<Item = usize> + '_ {
    let axes = layout.dims().iter().zip(layout.stride()).rev();
    (0..layout.shape().elem_count()).map(move |mut index| {
        axes.clone()
            .fold(layout.start_offset(), |offset, (&size, &stride)| {
                let along = index % size;
                index /= size;
                offset + along * stride
            })
    })
}

fn contiguous<'a, T>(values: &'a mut [T], layout: &Layout) -> Result<&'a mut [T]> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let values = range.and_then(|range| values.get_mut(range));
    values.ok_or_else(out_of_bounds)
}

fn out_of_bounds() -> candle_core::Error {
    candle_core::Error::RequiresContiguous {
        op: "blend-in-place",
    }
    .bt()
}

fn unsupported(storage: &CpuStorage) -> candle_core::Error {
    use candle_core::backend::BackendStorage;
    candle_core::Error::UnsupportedDTypeForOp(storage.dtype(), "blend-in-place").bt()
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn large_tensors_are_shared_out_without_a_seam() {
        let len = SHARED + CHUNK + 17;
        let buffer = Var::ones(len, DType::F64, &Device::Cpu).unwrap();
        let added = Tensor::arange(0f64, len as f64, &Device::Cpu).unwrap();
        blend(&buffer, 0.5, 2., Some(&added)).unwrap();
        let expected: Vec<f64> = (0..len).map(|i| 0.5 + 2. * i as f64).collect();
        assert_eq!(values(&buffer), expected);
    }

    #[test]
    fn takes_strided_and_shifted_sources() {
        let buffer = Var::zeros((3, 2), DType::F32, &Device::Cpu).unwrap();
        let source = Tensor::arange(0f32, 8., &Device::Cpu).unwrap();
        let source = source.reshape((2, 4)).unwrap().narrow(1, 1, 3).unwrap();
        blend(&buffer, 0., 1., Some(&source.t().unwrap())).unwrap();
        assert_eq!(values(&buffer), [1., 5., 2., 6., 3., 7.]);
    }

    #[test]
    fn what_stood_there_does_not_leak_into_a_new_window() {
        let buffer = Var::new(&[f32::NAN, f32::INFINITY], &Device::Cpu).unwrap();
        let source = Tensor::new(&[1f32, 2.], &Device::Cpu).unwrap();
        blend(&buffer, 0., 0.5, Some(&source)).unwrap();
        assert_eq!(values(&buffer), [0.5, 1.]);
    }

    #[test]
    fn refuses_integers() {
        let buffer = Var::zeros(2, DType::F32, &Device::Cpu).unwrap();
        let source = Tensor::new(&[1u32, 2], &Device::Cpu).unwrap();
        let error = blend(&buffer, 0., 1., Some(&source)).unwrap_err();
        assert!(error.to_string().contains("U32"), "{error}");
    }
}
