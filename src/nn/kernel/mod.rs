//! Fused computations on the CPU and on CUDA.

pub mod cuda;
mod dispatch;
mod element;
mod functions;
pub mod matrix;
pub mod philox;
mod rows;
mod storage;

use candle_core::{Result, Shape, Tensor};

use cuda::CudaKernel;
pub use dispatch::run;
pub use element::{Element, sum_type};
pub use functions::Functions;
pub use rows::{by_rows, max_of, rows_at_once, sum_of, sum_of_products};
pub use storage::{mismatch, slice_of, tensor};

/// A fused computation: it reads tensors of one floating-point type and makes new ones.
///
/// Sums are computed in [`Element::Sum`].
pub trait Kernel<const IN: usize, const OUT: usize>: CudaKernel<IN, OUT> {
    /// Also the name of the CUDA kernel, without the type.
    const NAME: &'static str;

    /// The type of the outputs, `T` or `T::Sum`.
    type Output<T: Element>: Element;

    /// The shapes of the outputs. The inputs have been checked by the caller.
    fn shapes(&self, inputs: [&Tensor; IN]) -> Result<[Shape; OUT]>;

    /// Writes the outputs, which are zeros. All slices are contiguous and have the sizes of their shapes.
    fn cpu<T: Element>(
        &self,
        inputs: [&[T]; IN],
        outputs: [&mut [Self::Output<T>]; OUT],
    ) -> Result<()>;

    /// Computes the same with candle's operations, for other devices.
    fn composed(&self, inputs: [&Tensor; IN]) -> Result<[Tensor; OUT]>;
}
