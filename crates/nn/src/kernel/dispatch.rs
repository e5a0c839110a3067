use candle_core::{DType, Device, Error, Result, Tensor};
use half::{bf16, f16};

use super::storage::{mismatch, no_kernels, same_device, same_type};
use super::{Kernel, Number, blocks, cuda, sum_type};

/// Whether there are kernels for a device. On others operations of this module are compositions of candle's.
pub fn runs_on(device: &Device) -> bool {
    match device {
        Device::Cpu => true,
        Device::Cuda(_) => cfg!(feature = "cuda"),
        Device::Metal(_) => false,
    }
}

/// Runs a kernel. Strided inputs are copied first. The outputs are not in the graph.
///
/// # Errors
/// If an input is on another device than the last or has another type, the type is not f64, f32, f16 or bf16, or there are no kernels
/// for the device.
pub fn run<K: Kernel<IN, OUT>, const IN: usize, const OUT: usize>(
    kernel: &K,
    inputs: [&Tensor; IN],
) -> Result<[Tensor; OUT]> {
    let name = K::NAME;
    let (dtype, device, dense) = checked(name, K::WIDE, &inputs)?;
    let plan = kernel.plan(inputs);
    let outputs = match (device, dtype) {
        (Device::Cpu, DType::F32) => blocks::run::<f32>(name, &plan, &dense, &work(kernel)),
        (Device::Cpu, DType::F64) => blocks::run::<f64>(name, &plan, &dense, &work(kernel)),
        (Device::Cpu, DType::F16) => blocks::run::<f16>(name, &plan, &dense, &work(kernel)),
        (Device::Cpu, _) => blocks::run::<bf16>(name, &plan, &dense, &work(kernel)),
        (Device::Cuda(device), _) => cuda::run(kernel, &device, &dense, &plan),
        (Device::Metal(_), _) => Err(no_kernels(name)),
    };
    outputs?.try_into().map_err(|_| mismatch(name))
}

/// A kernel as what its blocks have to do.
fn work<K: Kernel<IN, OUT>, S: Number, const IN: usize, const OUT: usize>(
    kernel: &K,
) -> impl Fn(usize, &[&[S]], Vec<&mut [S]>) -> Result<()> + Sync {
    move |first, inputs, outputs| match (inputs.try_into(), outputs.try_into()) {
        (Ok(inputs), Ok(outputs)) => {
            kernel.cpu(first, inputs, outputs);
            Ok(())
        }
        _ => Err(mismatch(K::NAME)),
    }
}

/// The type, the device, and the inputs, contiguous and outside the graph.
fn checked(
    name: &'static str,
    wide: usize,
    inputs: &[&Tensor],
) -> Result<(DType, Device, Vec<Tensor>)> {
    let last = inputs.last().ok_or_else(|| mismatch(name))?;
    let (dtype, device) = (last.dtype(), last.device());
    if !matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16) {
        return Err(Error::UnsupportedDTypeForOp(dtype, name).bt());
    }
    let mut dense = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        let expected = if index < wide { sum_type(dtype) } else { dtype };
        same_type(name, input.dtype(), expected)?;
        same_device(name, input.device(), device)?;
        dense.push(input.detach().contiguous()?);
    }
    Ok((dtype, device.clone(), dense))
}
