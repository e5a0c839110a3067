//! Multiplies a tensor by a number that lies on its device, in place.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, Device, InplaceOp2, Layout, Result, Tensor, bail};

use crate::nn::kernel::matrix::Number;
use crate::nn::kernel::{by_rows, mismatch};

const NAME: &str = "scale";

/// `values`, at least one, are contiguous and share their storage with no other tensor; `factor` has one element of the same
/// type, f32 or f64.
pub fn scale(values: &Tensor, factor: &Tensor) -> Result<()> {
    let in_place = match values.device() {
        Device::Cpu => true,
        Device::Cuda(_) => cfg!(feature = "cuda"),
        Device::Metal(_) => false,
    };
    match in_place {
        true => values.inplace_op2(factor, &Scale),
        false => values.slice_set(&values.broadcast_mul(factor)?, 0, 0),
    }
}

struct Scale;

impl InplaceOp2 for Scale {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        values: &mut CpuStorage,
        of_values: &Layout,
        factor: &CpuStorage,
        of_factor: &Layout,
    ) -> Result<()> {
        let at = of_factor.start_offset();
        match (values, factor) {
            (CpuStorage::F32(values), CpuStorage::F32(factor)) => {
                on_cpu(values, of_values, factor.get(at))
            }
            (CpuStorage::F64(values), CpuStorage::F64(factor)) => {
                on_cpu(values, of_values, factor.get(at))
            }
            _ => bail!("{NAME}: sums that are neither f32 nor f64"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        values: &mut CudaStorage,
        of_values: &Layout,
        factor: &CudaStorage,
        of_factor: &Layout,
    ) -> Result<()> {
        crate::nn::kernel::cuda::scale((values, of_values), (factor, of_factor))
    }
}

fn on_cpu<T: Number>(values: &mut [T], layout: &Layout, factor: Option<&T>) -> Result<()> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let values = range.and_then(|range| values.get_mut(range));
    let (Some(values), Some(factor)) = (values, factor) else {
        return Err(mismatch(NAME));
    };
    if *factor != T::one() {
        by_rows(values, 1, |_, values| {
            values.iter_mut().for_each(|value| *value *= *factor);
        });
    }
    Ok(())
}
