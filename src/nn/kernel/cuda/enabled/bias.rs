use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
use candle_core::{CudaStorage, DType, Error, Layout, Result};
use half::{bf16, f16};

use super::{CudaElement, Module, each_element, function, module};
use crate::nn::kernel::mismatch;

const MODULE: Module = module!("bias");
const NAME: &str = "add_to_rows";

/// Adds a vector to each row in place. Both are contiguous and of the same type.
pub fn add_to_rows(
    rows: &mut CudaStorage,
    rows_layout: &Layout,
    bias: &CudaStorage,
    bias_layout: &Layout,
) -> Result<()> {
    let add = match rows.dtype() {
        DType::F32 => add::<f32>,
        DType::F64 => add::<f64>,
        DType::F16 => add::<f16>,
        DType::BF16 => add::<bf16>,
        dtype => return Err(Error::UnsupportedDTypeForOp(dtype, NAME).bt()),
    };
    add(rows, rows_layout, bias, bias_layout)
}

fn add<T: CudaElement>(
    rows: &mut CudaStorage,
    rows_layout: &Layout,
    bias: &CudaStorage,
    bias_layout: &Layout,
) -> Result<()> {
    let [Some((start, end)), Some((first, last))] =
        [rows_layout, bias_layout].map(Layout::contiguous_offsets)
    else {
        return Err(mismatch(NAME));
    };
    let function = function::<T>(&rows.device, MODULE, NAME)?;
    let bias = T::as_cuda_slice(bias)?.try_slice(first..last);
    let rows = T::as_cuda_slice_mut(rows)?.try_slice_mut(start..end);
    let (Some(bias), Some(mut rows)) = (bias, rows) else {
        return Err(mismatch(NAME));
    };
    let (len, width) = (rows.len(), bias.len());
    let mut launch = function.builder();
    launch.arg(&len).arg(&width).arg(&bias).arg(&mut rows);
    // SAFETY: the arguments are those of the kernel in kernels/bias.cu; rows have `len` elements, and bias has `width`, more than 0.
    unsafe { launch.launch(each_element(len)) }.w()?;
    Ok(())
}
