use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::optim::fused::{Managed, Snapshot};

/// The state of one parameter.
#[derive(Debug, Clone)]
pub struct State {
    pub tensors: Vec<Tensor>,
    pub master: Option<Tensor>,
    /// For a matrix of Adafactor: its next tensors, and the means of its rows. Of use within a step only.
    pub scratch: Vec<Tensor>,
}

impl State {
    pub fn fresh(parameter: &Managed, device: &Device, is_factored: bool) -> Result<Self> {
        let master = match parameter.has_master {
            true => Some(parameter.var.as_detached_tensor().to_dtype(DType::F32)?),
            false => None,
        };
        Ok(Self {
            tensors: zeros(parameter, device)?,
            master,
            scratch: scratch(parameter, device, is_factored)?,
        })
    }

    pub fn loaded(
        parameter: &Managed,
        saved: &Snapshot,
        device: &Device,
        is_factored: bool,
    ) -> Result<Self> {
        let own = |tensor: &Tensor| tensor.force_contiguous()?.to_device(device);
        let tensors = saved.tensors.iter().map(own);
        Ok(Self {
            tensors: tensors.collect::<candle_core::Result<_>>()?,
            master: saved.master.as_ref().map(own).transpose()?,
            scratch: scratch(parameter, device, is_factored)?,
        })
    }
}

fn zeros(parameter: &Managed, device: &Device) -> Result<Vec<Tensor>> {
    let kept = parameter.kept.iter();
    let zeros = kept.map(|(kept, dtype)| Tensor::zeros(kept.dims.as_slice(), *dtype, device));
    Ok(zeros.collect::<candle_core::Result<_>>()?)
}

fn scratch(parameter: &Managed, device: &Device, is_factored: bool) -> Result<Vec<Tensor>> {
    match parameter.var.dims() {
        [batches @ .., _, _] if is_factored => {
            let mut scratch = zeros(parameter, device)?;
            scratch.push(Tensor::zeros(batches, DType::F64, device)?);
            Ok(scratch)
        }
        _ => Ok(Vec::new()),
    }
}
