//! Fused computations on the CPU and on CUDA.

mod blocks;
pub mod cuda;
mod dispatch;
mod element;
#[allow(unsafe_code, reason = "calls gemm")]
pub mod matrix;
pub mod philox;
mod rows;
mod storage;

pub use dispatch::{Extent, Kernel, Plan, run, runs_on};
pub use element::{Element, Number, sum_type};
pub use rows::{
    by_rows, max_of, on_all_threads, rows_at_once, rows_of_part, sum_of, sum_of_products,
    with_scratch,
};
pub use storage::{
    InPlace, in_place, mismatch, no_kernels, same_device, same_type, slice_of, slice_of_mut, tensor,
};
