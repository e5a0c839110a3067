//! Fused computations on the CPU and on CUDA.
//!
//! A [`Kernel`] says how rows of its inputs become rows of its outputs, for f32 and f64; f16 and bf16 are widened to f32 and rounded
//! once. On the CPU, blocks of rows run on rayon's threads. Blocks depend on sizes only, so results do not depend on the number of
//! threads. Inputs may have any strides, and outputs are outside of the graph: [`record`](crate::graph::record) puts them into it.

mod blocks;
pub mod cuda;
mod dense;
mod dispatch;
mod element;
#[allow(unsafe_code, reason = "calls gemm")]
pub mod matrix;
pub mod philox;
mod product;
mod range;
mod rows;
mod storage;

pub use dense::dense;
pub use dispatch::{Extent, Kernel, Plan, run, runs_on};
pub use element::{Element, Number, sum_type};
pub use product::{multiply, product, scaled};
pub use range::{IndexRangeError, count_in_range, in_range, is_in_range};
pub use rows::{
    by_rows, max_of, on_all_threads, rows_at_once, rows_of_part, sum_of, sum_of_products,
    with_scratch,
};
pub use storage::{
    InPlace, in_place, mismatch, no_kernels, same_device, same_type, slice_of, slice_of_mut, tensor,
};
