use candle_core::{Shape, Storage, Tensor};

use crate::kernel::matrix::Number;
use crate::kernel::tensor;

/// A tensor outside the graph.
pub fn from_vec<T: Number>(values: Vec<T>, shape: impl Into<Shape>) -> Tensor {
    tensor(Storage::Cpu(T::to_cpu_storage_owned(values)), shape.into())
}
