mod dequantize;
mod in_place;
mod kernels;
mod launch;
mod moved;
mod product;
mod rotation;
mod strided;

use candle_core::backend::BackendDevice;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape};

pub use dequantize::{ggml_part, nf4_part};
pub use in_place::{add_to_rows, losses_of_rows, scale};
pub use kernels::{CudaKernel, run, sums_by_row};
pub(crate) use launch::module;
pub use launch::{Argument, Launch, Module, each_row};
pub use moved::{Away, Host};
pub use product::{multiply, product_of, put_product, regular};
pub use rotation::{Turn, rotate_both};
pub use strided::copied;

/// Memory of one element whose value has no meaning: a scalar of the graph, or what is left where a storage was moved away.
pub fn unread(device: &CudaDevice, dtype: DType) -> Result<CudaStorage> {
    // SAFETY: it is of numbers, for which all bits are values, and no result depends on them (graph/node.rs): at most candle adds them up.
    unsafe { device.alloc_uninit(&Shape::from(1), dtype) }
}

/// Memory of a device, all of which a kernel or a product writes before anything reads it, on the device's stream.
fn unwritten(device: &CudaDevice, len: usize, dtype: DType) -> Result<CudaStorage> {
    // The driver refuses to allocate nothing.
    let shape = Shape::from(len.max(1));
    // SAFETY: only the files beside this one call it, and they launch what writes all of it, on the same stream.
    unsafe { device.alloc_uninit(&shape, dtype) }
}
