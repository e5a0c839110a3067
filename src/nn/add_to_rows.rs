#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Result, Tensor};

use super::kernel::{Element, by_rows, mismatch};

/// Adds a vector to each row. On the CPU and on CUDA it does so in place, without a second tensor of that size; no other tensor may
/// share the storage of `rows`.
pub fn add_to_rows(rows: Tensor, bias: &Tensor) -> Result<Tensor> {
    let known = matches!(
        rows.dtype(),
        DType::F32 | DType::F64 | DType::F16 | DType::BF16
    );
    let alike = rows.dtype() == bias.dtype() && rows.device().same_device(bias.device());
    let dense = rows.is_contiguous() && rows.elem_count() > 0;
    let here = match rows.device() {
        Device::Cpu => true,
        Device::Cuda(_) => cfg!(feature = "cuda"),
        Device::Metal(_) => false,
    };
    if !(known && alike && dense && here) {
        return rows.broadcast_add(bias);
    }
    rows.inplace_op2(&bias.detach().contiguous()?, &AddToRows)?;
    Ok(rows)
}

struct AddToRows;

const NAME: &str = "add_to_rows";

impl InplaceOp2 for AddToRows {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        rows: &mut CpuStorage,
        rows_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<()> {
        let layouts = [rows_layout, bias_layout];
        match (rows, bias) {
            (CpuStorage::F32(rows), CpuStorage::F32(bias)) => add(rows, bias, layouts),
            (CpuStorage::F64(rows), CpuStorage::F64(bias)) => add(rows, bias, layouts),
            (CpuStorage::F16(rows), CpuStorage::F16(bias)) => add(rows, bias, layouts),
            (CpuStorage::BF16(rows), CpuStorage::BF16(bias)) => add(rows, bias, layouts),
            _ => Err(mismatch(NAME)),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        rows: &mut CudaStorage,
        rows_layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> Result<()> {
        super::kernel::cuda::add_to_rows(rows, rows_layout, bias, bias_layout)
    }
}

fn add<T: Element>(rows: &mut [T], bias: &[T], layouts: [&Layout; 2]) -> Result<()> {
    let [Some((start, end)), Some((first, last))] = layouts.map(Layout::contiguous_offsets) else {
        return Err(mismatch(NAME));
    };
    let rows = rows.get_mut(start..end).ok_or_else(|| mismatch(NAME))?;
    let bias = bias.get(first..last).ok_or_else(|| mismatch(NAME))?;
    by_rows(rows, bias.len(), |_, rows| {
        for row in rows.chunks_mut(bias.len()) {
            for (y, b) in row.iter_mut().zip(bias) {
                *y = T::narrow(y.widen() + b.widen());
            }
        }
    });
    Ok(())
}
