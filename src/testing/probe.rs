use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::enabled::inject;
use crate::error::Phase;

/// Copies a tensor of any shape: a point in the forward pass of a model and one in its backward pass. CPU only.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom::error::Phase;
/// use candle_headroom::testing::{Faults, probe};
///
/// let x = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let _armed = Faults::in_phase(Phase::Backward, 0).arm();
/// let loss = probe(&x.sqr()?)?.sum_all()?;
/// assert!(loss.backward().is_err());
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// The armed fault, or candle's error if `tensor` is on another device.
pub fn probe(tensor: &Tensor) -> Result<Tensor> {
    inject(Phase::Forward)?;
    tensor.force_contiguous()?.apply_op1(Probe)
}

struct Probe;

impl CustomOp1 for Probe {
    fn name(&self) -> &'static str {
        "fault-probe"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        // `force_contiguous` made the storage for this tensor alone.
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        inject(Phase::Backward)?;
        Ok(Some(gradient.clone()))
    }
}
