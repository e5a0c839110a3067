//! Turns rows of logits into losses and gradients.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Shape, Storage, Tensor, bail};
use parking_lot::Mutex;

use super::arguments::Arguments;
use super::{composed, cpu};
use crate::nn::kernel::{mismatch, tensor};

/// The losses of rows of logits, which are contiguous and in the type of sums. With `differentiates` the logits become the
/// gradients of the sum of the losses.
pub fn losses(arguments: &Arguments, logits: &Tensor) -> Result<Tensor> {
    let in_place = match logits.device() {
        Device::Cpu => true,
        Device::Cuda(_) => cfg!(feature = "cuda"),
        Device::Metal(_) => false,
    };
    if !in_place {
        let (losses, gradients) = composed::losses(arguments, logits)?;
        if let Some(gradients) = gradients {
            logits.slice_set(&gradients.contiguous()?, 0, 0)?;
        }
        return Ok(losses);
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
        let losses = crate::nn::kernel::cuda::losses_of_rows(self.arguments, logits, layout)?;
        *self.losses.lock() = Some(Storage::Cuda(losses));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Result, Tensor};

    use super::super::arguments::Arguments;
    use super::super::options::Rule;
    use super::{composed, losses};

    /// What candle's operations compute on other devices, against the fused pass.
    #[test]
    fn composed_agrees() -> Result<()> {
        let numbers = (0..28).map(|i| 6. * (1.3 * f64::from(i + 1)).sin());
        let logits = Tensor::from_iter(numbers, &Device::Cpu)?.reshape((4, 7))?;
        let bias = Tensor::arange(0f64, 7., &Device::Cpu)?;
        let weights = Tensor::new(&[0.5f64, 2., 3., 0.], &Device::Cpu)?;
        let targets = Tensor::new(&[6i64, 99, 0, 3], &Device::Cpu)?;
        for (smoothing, z_loss, softcap) in [(0., 0., None), (0.1, 1e-2, Some(2.5))] {
            for extras in [false, true] {
                let arguments = Arguments {
                    rule: Rule {
                        smoothing,
                        z_loss,
                        softcap,
                    },
                    targets: &targets,
                    none: 99,
                    weights: extras.then_some(&weights),
                    bias: extras.then_some(&bias),
                    differentiates: true,
                };
                let (expected, gradients) = composed::losses(&arguments, &logits)?;
                let found = logits.copy()?;
                let differs =
                    |a: &Tensor, b: &Tensor| (a - b)?.abs()?.max_all()?.to_scalar::<f64>();
                let off = differs(&losses(&arguments, &found)?, &expected)?;
                assert!(off < 1e-12, "{arguments:?}: losses {off:e} off");
                let off = differs(&found, &gradients.expect("gradients"))?;
                assert!(off < 1e-12, "{arguments:?}: gradients {off:e} off");
            }
        }
        Ok(())
    }
}
