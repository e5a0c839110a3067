//! Tensors in one piece, as kernels read them.

use candle_core::{Result, Tensor};

use super::range::in_range;

/// A contiguous tensor of the same values. On CUDA, outside the graph, this crate copies it unless it is contiguous already, else candle.
pub fn dense(name: &'static str, tensor: &Tensor) -> Result<Tensor> {
    if tensor.is_contiguous() {
        return Ok(tensor.clone());
    }
    #[cfg(feature = "cuda")]
    if tensor.device().is_cuda()
        && !tensor.track_op()
        && let Some(copy) = super::cuda::copied(tensor)?
    {
        return Ok(copy);
    }
    in_range(name, [tensor])?;
    tensor.contiguous()
}
