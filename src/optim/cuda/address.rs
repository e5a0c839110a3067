use std::cell::Cell;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use candle_core::{
    CpuStorage, CudaStorage, DType, Error, InplaceOp2, Layout, Result, Storage, Tensor,
};

use crate::optim::fused::{Managed, misplaced};

/// Returns the number of a type in the kernels.
pub fn code(dtype: DType) -> Result<u32> {
    match dtype {
        DType::F32 => Ok(0),
        DType::F64 => Ok(1),
        DType::F16 => Ok(2),
        DType::BF16 => Ok(3),
        // Moments of 8 bits.
        DType::U8 => Ok(4),
        other => Err(Error::UnsupportedDTypeForOp(other, "fused-update").bt()),
    }
}

/// Evaluates `$do` for values of each type that [`code`] has.
macro_rules! each {
    ($slice:expr, $values:ident => $do:expr) => {
        match $slice {
            CudaStorageSlice::F32($values) => Ok($do),
            CudaStorageSlice::F64($values) => Ok($do),
            CudaStorageSlice::F16($values) => Ok($do),
            CudaStorageSlice::BF16($values) => Ok($do),
            CudaStorageSlice::U8($values) => Ok($do),
            _ => Err(misplaced()),
        }
    };
}

/// Returns the address of a tensor for reading. The stream waits for writes by other streams.
fn address(storage: &CudaStorage, layout: &Layout, stream: &CudaStream) -> Result<u64> {
    let address: Result<u64> = each!(&storage.slice, values => values.device_ptr(stream).0);
    Ok(address? + offset(layout, storage.dtype()))
}

fn offset(layout: &Layout, dtype: DType) -> u64 {
    (layout.start_offset() * dtype.size_in_bytes()) as u64
}

/// Returns the address of a tensor of the engine; 0 for none.
pub fn address_of(tensor: Option<&Tensor>, stream: &CudaStream) -> Result<u64> {
    let Some(tensor) = tensor else {
        return Ok(0);
    };
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => address(storage, layout, stream),
        _ => Err(misplaced()),
    }
}

/// Returns the addresses of a parameter and its gradient, after candle's own checks.
pub fn locate(parameter: &Managed, gradient: &Tensor) -> Result<(u64, u64)> {
    let locate = Locate(Cell::new(None));
    parameter.handle.inplace_op2(gradient, &locate)?;
    locate.0.get().ok_or_else(misplaced)
}

/// An operation that only stores the addresses of its operands.
struct Locate(Cell<Option<(u64, u64)>>);

impl InplaceOp2 for Locate {
    fn name(&self) -> &'static str {
        "fused-update"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
        Err(misplaced())
    }

    fn cuda_fwd(
        &self,
        parameter: &mut CudaStorage,
        parameter_layout: &Layout,
        gradient: &CudaStorage,
        gradient_layout: &Layout,
    ) -> Result<()> {
        let stream = parameter.device.cuda_stream();
        let offset = offset(parameter_layout, parameter.dtype());
        let moved: Result<u64> =
            each!(&mut parameter.slice, values => values.device_ptr_mut(&stream).0);
        let read = address(gradient, gradient_layout, &stream)?;
        self.0.set(Some((moved? + offset, read)));
        Ok(())
    }
}
