//! Fused computations on the CPU and on CUDA.

mod blocks;
pub mod cuda;
mod dispatch;
mod element;
mod functions;
mod in_place;
#[allow(unsafe_code, reason = "calls gemm")]
pub mod matrix;
pub mod philox;
mod plan;
mod rows;
mod storage;

use candle_core::Tensor;

use cuda::CudaKernel;
pub use dispatch::{run, runs_on};
pub use element::{Element, Number, sum_type};
pub use in_place::{InPlace, in_place};
pub use plan::{Extent, Plan};
pub use rows::{
    by_rows, max_of, on_all_threads, rows_at_once, sum_of, sum_of_products, with_scratch,
};
pub use storage::{mismatch, no_kernels, same_device, same_type, slice_of, tensor};

/// A fused computation: it reads tensors of one floating-point type, and some of the type of sums, and makes new ones.
///
/// Everything is computed in f64 for f64 and in f32 for all others.
pub trait Kernel<const IN: usize, const OUT: usize>: CudaKernel<IN, OUT> + Sync {
    /// Also the name of the CUDA kernel, without the type.
    const NAME: &'static str;

    /// Number of inputs, the first ones, of the type of sums.
    const WIDE: usize = 0;

    /// How the work is cut on the CPU, and the shapes of the outputs. The inputs have been checked by the caller.
    fn plan(&self, inputs: [&Tensor; IN]) -> Plan;

    /// Writes the outputs of a block of rows, which are zeros. `first` is the number of its first row.
    fn cpu<S: Number>(&self, first: usize, inputs: [&[S]; IN], outputs: [&mut [S]; OUT]);
}
