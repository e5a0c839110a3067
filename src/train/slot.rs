use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::optim::{Parameter, blend, check_shape};

/// A parameter and the weighted mean of its gradients.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) parameter: Parameter,
    /// Allocated when the parameter first receives a gradient, or with those of all others; f32 for f16 and bf16 parameters.
    pub(super) buffer: Option<Tensor>,
    /// Whether it has ever received a gradient.
    pub(super) is_reached: bool,
    /// Whether the buffer holds a gradient of the current window.
    pub(super) is_filled: bool,
    /// Number of updates, the next one included, in which the first gradient may arrive; 0 if it has, or need not.
    pub(super) awaited: usize,
}

impl Slot {
    /// Checks a gradient's shape and allocates a missing buffer: all that can run out of memory.
    pub(super) fn prepare(&mut self, gradient: &Tensor) -> Result<()> {
        let Parameter { name, var } = &self.parameter;
        check_shape(name, var, gradient)?;
        if self.buffer.is_none() {
            let dtype = self.buffer_type();
            self.buffer = Some(Tensor::zeros(var.shape(), dtype, var.device())?);
        }
        Ok(())
    }

    /// Computes `keep · mean + add · gradient` in place.
    pub(super) fn blend(&mut self, keep: f64, add: f64, gradient: Option<Tensor>) -> Result<()> {
        let keep = if self.is_filled { keep } else { 0. };
        if let Some(buffer) = &self.buffer
            && (self.is_filled || gradient.is_some())
        {
            blend(buffer, keep, add, gradient.as_ref())?;
            (self.is_filled, self.is_reached) = (true, true);
        }
        Ok(())
    }

    pub(super) fn buffer_type(&self) -> DType {
        match self.parameter.var.dtype() {
            DType::F16 | DType::BF16 => DType::F32,
            dtype => dtype,
        }
    }
}
