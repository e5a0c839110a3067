//! cuBLAS: the matrix products and vector operations that candle and cudarc use, computed on the host.

pub mod entry;
pub mod gemm;
pub mod handle;
pub mod number;
pub mod product;
pub mod vector;
pub mod vector_entry;
