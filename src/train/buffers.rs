use candle_core::{Tensor, Var};

use crate::error::{ParameterError, Result};

/// Variables that the forward pass changes by itself, such as BatchNorm's running statistics, with their values at the start
/// of the window and of the micro-batch. Saving and restoring copy in place and allocate nothing.
#[derive(Debug, Default)]
pub(super) struct Buffers(Vec<Buffer>);

#[derive(Debug)]
struct Buffer {
    live: Var,
    at_window: Var,
    at_micro_batch: Var,
}

impl Buffers {
    pub(super) fn new(tensors: &[Tensor]) -> Result<Self> {
        let buffers = tensors.iter().enumerate().map(|(index, tensor)| {
            if !tensor.is_variable() {
                return Err(ParameterError::NotAVariable { index }.into());
            }
            if !tensor.is_contiguous() {
                return Err(ParameterError::NotContiguous { index }.into());
            }
            Ok(Buffer {
                live: Var::from_tensor(tensor)?,
                at_window: Var::from_tensor(&tensor.force_contiguous()?)?,
                at_micro_batch: Var::from_tensor(&tensor.force_contiguous()?)?,
            })
        });
        Ok(Self(buffers.collect::<Result<_>>()?))
    }

    pub(super) fn save_window(&self) -> Result<()> {
        self.each(|buffer| buffer.at_window.set(&buffer.live))
    }

    pub(super) fn save_micro_batch(&self) -> Result<()> {
        self.each(|buffer| buffer.at_micro_batch.set(&buffer.live))
    }

    pub(super) fn restore_window(&self) -> Result<()> {
        self.each(|buffer| buffer.live.set(&buffer.at_window))
    }

    pub(super) fn restore_micro_batch(&self) -> Result<()> {
        self.each(|buffer| buffer.live.set(&buffer.at_micro_batch))
    }

    fn each(&self, copy: impl Fn(&Buffer) -> candle_core::Result<()>) -> Result<()> {
        Ok(self.0.iter().try_for_each(copy)?)
    }
}
