mod in_place;
mod kernels;
mod launch;
mod product;

use candle_core::backend::BackendDevice;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape};

pub use in_place::{add_to_rows, losses_of_rows, scale};
pub use kernels::{CudaKernel, run, sums_by_row};
pub(crate) use launch::module;
pub use launch::{Argument, Launch, Module, each_row};
pub use product::{multiply, product_of, put_product, regular};

/// The smallest storage that the driver allocates.
pub fn smallest(device: &CudaDevice) -> Result<CudaStorage> {
    device.zeros_impl(&Shape::from(1), DType::U8)
}

/// Memory of a device, all of which a kernel or a product writes before anything reads it, on the device's stream.
fn unwritten(device: &CudaDevice, len: usize, dtype: DType) -> Result<CudaStorage> {
    // The driver refuses to allocate nothing.
    let shape = Shape::from(len.max(1));
    // SAFETY: only the files beside this one call it, and they launch what writes all of it, on the same stream.
    unsafe { device.alloc_uninit(&shape, dtype) }
}
