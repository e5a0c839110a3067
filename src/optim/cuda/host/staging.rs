use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::CudaStream;

use super::pinned::{ALIGNMENT, Pinned};
use crate::error::Result;
use crate::optim::cuda::layout::Staged;
use crate::optim::fused::Managed;

/// Room in host memory for updates of one parameter, or of a piece of one, by the host's cores.
#[derive(Debug)]
pub struct Staging {
    /// The gradient and, from `start` on, the parameter.
    down: Pinned,
    start: usize,
    /// The new values of the parameter, which the device reads while the host goes on with `down`.
    up: Pinned,
    bytes: u64,
}

impl Staging {
    /// Where the parameter begins behind its gradient, and the bytes of its values.
    fn layout(parameter: &Managed) -> (usize, usize) {
        // The gradient of f16 and bf16 parameters may be f32.
        let gradient = parameter.len * parameter.full.size_in_bytes();
        let values = parameter.len * parameter.var.dtype().size_in_bytes();
        (gradient.next_multiple_of(ALIGNMENT), values)
    }

    /// The bytes that a parameter needs.
    pub fn needed(parameter: &Managed) -> u64 {
        let (start, values) = Self::layout(parameter);
        (start + 2 * values) as u64
    }

    pub fn new(parameter: &Managed, stream: &Arc<CudaStream>) -> Result<Self> {
        let (start, values) = Self::layout(parameter);
        Ok(Self {
            down: Pinned::zeros(stream, start + values)?,
            start,
            up: Pinned::zeros(stream, values)?,
            bytes: Self::needed(parameter),
        })
    }

    /// Whether it has the room that this parameter needs.
    pub fn fits(&self, parameter: &Managed) -> bool {
        (self.start, self.bytes) == (Self::layout(parameter).0, Self::needed(parameter))
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn staged(&self) -> Staged {
        let gradient = self.down.address();
        Staged {
            gradient,
            parameter: gradient + self.start as u64,
            new: self.up.address(),
        }
    }

    /// The copies of the gradient, with room behind it, and of the parameter; and the memory for the new values.
    ///
    /// # Safety
    /// No unfinished work on the device uses the copies.
    pub unsafe fn parts(&mut self) -> (&mut [u8], &mut [u8], &mut Pinned) {
        // SAFETY: the same contract.
        let down = unsafe { self.down.write() };
        let (gradient, parameter) = down.split_at_mut_checked(self.start).unwrap_or_default();
        (gradient, parameter, &mut self.up)
    }
}
