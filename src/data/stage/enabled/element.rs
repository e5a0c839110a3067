use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::sys::CUdeviceptr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtrMut, DeviceRepr};
use candle_core::{CpuStorage, CudaDevice, DType, Layout, Result};

/// The bytes of a contiguous tensor; `None` for the types that candle only stores.
pub fn bytes_of<'a>(storage: &'a CpuStorage, layout: &Layout) -> Option<&'a [u8]> {
    let (start, end) = layout.contiguous_offsets()?;
    macro_rules! of {
        ($($dtype:ident)+) => {
            match storage {
                $(CpuStorage::$dtype(values) => values.get(start..end).map(plain),)+
                _ => None,
            }
        };
    }
    of!(U8 U32 I16 I32 I64 BF16 F16 F32 F64 F8E4M3)
}

/// The bytes of numbers that the device stores in the same way.
fn plain<T: DeviceRepr>(values: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding, so all bytes are initialized, and as many as the slice has.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Device memory that is not initialized, and its address. `None` for the types that candle only stores.
///
/// # Safety
/// It is written before it is read.
pub unsafe fn uninitialized(
    device: &CudaDevice,
    dtype: DType,
    len: usize,
) -> Result<Option<(CudaStorageSlice, CUdeviceptr)>> {
    macro_rules! of {
        ($($dtype:ident)+) => {
            match dtype {
                $(DType::$dtype => {
                    // SAFETY: the same contract.
                    let (slice, address) = unsafe { allocate(device, len) }?;
                    Some((CudaStorageSlice::$dtype(slice), address))
                })+
                _ => None,
            }
        };
    }
    Ok(of!(U8 U32 I16 I32 I64 BF16 F16 F32 F64 F8E4M3))
}

/// # Safety
/// As for [`uninitialized`].
unsafe fn allocate<T: DeviceRepr>(
    device: &CudaDevice,
    len: usize,
) -> Result<(CudaSlice<T>, CUdeviceptr)> {
    // The driver refuses to allocate nothing.
    // SAFETY: the same contract.
    let mut slice = unsafe { device.alloc(len.max(1)) }?;
    let stream = device.cuda_stream();
    let (address, _) = slice.device_ptr_mut(&stream);
    Ok((slice, address))
}
