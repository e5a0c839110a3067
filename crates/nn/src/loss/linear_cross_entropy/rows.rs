//! Turns rows of logits into losses and gradients.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Shape, Storage, Tensor, bail};
use parking_lot::Mutex;

use super::cpu;
use super::options::Arguments;
use super::product::in_place;
use crate::kernel::{mismatch, tensor};

/// The losses of rows of logits, which are contiguous and in the type of sums. With `differentiates` the logits become the
/// gradients of the sum of the losses. On Metal this waits for the device, and the CPU computes it.
pub fn losses(arguments: &Arguments, logits: &Tensor) -> Result<Tensor> {
    if !in_place(logits.device()) {
        return on_host(arguments, logits);
    }
    let operation = Rows {
        arguments,
        losses: Mutex::new(None),
    };
    logits.inplace_op1(&operation)?;
    match operation.losses.into_inner() {
        Some(losses) => Ok(tensor(losses, Shape::from(logits.dim(0)?))),
        None => Err(mismatch(NAME)),
    }
}

fn on_host(arguments: &Arguments, logits: &Tensor) -> Result<Tensor> {
    let host = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
    let on_host = host(logits)?;
    let weights = arguments.weights.map(host).transpose()?;
    let bias = arguments.bias.map(host).transpose()?;
    let of_rows = Arguments {
        targets: &host(arguments.targets)?,
        weights: weights.as_ref(),
        bias: bias.as_ref(),
        ..*arguments
    };
    let losses = losses(&of_rows, &on_host)?;
    if arguments.differentiates {
        logits.slice_set(&on_host.to_device(logits.device())?, 0, 0)?;
    }
    losses.to_device(logits.device())
}

const NAME: &str = "linear_cross_entropy";

struct Rows<'a> {
    arguments: &'a Arguments<'a>,
    losses: Mutex<Option<Storage>>,
}

impl InplaceOp1 for Rows<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, logits: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let losses = match logits {
            CpuStorage::F32(logits) => {
                CpuStorage::F32(cpu::losses(self.arguments, logits, layout)?)
            }
            CpuStorage::F64(logits) => {
                CpuStorage::F64(cpu::losses(self.arguments, logits, layout)?)
            }
            _ => bail!("{NAME}: logits that are not in the type of sums"),
        };
        *self.losses.lock() = Some(Storage::Cpu(losses));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, logits: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let losses = crate::kernel::cuda::losses_of_rows(self.arguments, logits, layout)?;
        *self.losses.lock() = Some(Storage::Cuda(losses));
        Ok(())
    }
}
