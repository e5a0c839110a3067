mod in_place;
mod kernels;
mod launch;
mod product;

use candle_core::backend::BackendDevice;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape};

pub use in_place::{add_to_rows, losses_of_rows, scale};
pub use kernels::{CudaKernel, run};
pub(crate) use launch::module;
pub use launch::{Argument, Launch, Module, each_row};
pub use product::multiply;

/// The smallest storage that the driver allocates.
pub fn smallest(device: &CudaDevice) -> Result<CudaStorage> {
    device.zeros_impl(&Shape::from(1), DType::U8)
}
