use candle_core::{DType, Device, Error, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};
use num_traits::Zero;

use super::cuda;
use super::storage::{mismatch, slice_of, tensor};
use super::{Element, Kernel};

/// Runs a kernel. Strided inputs are copied first. The outputs are not in the graph.
///
/// # Errors
/// If an input is on another device than the first or has another type, or is not f64, f32, f16 or bf16.
pub fn run<K: Kernel<IN, OUT>, const IN: usize, const OUT: usize>(
    kernel: &K,
    inputs: [&Tensor; IN],
) -> Result<[Tensor; OUT]> {
    let first = inputs.first().ok_or_else(|| mismatch(K::NAME))?;
    let (dtype, device) = (first.dtype(), first.device().clone());
    let mut dense = Vec::with_capacity(IN);
    for input in inputs {
        if input.dtype() != dtype {
            return Err(Error::DTypeMismatchBinaryOp {
                lhs: dtype,
                rhs: input.dtype(),
                op: K::NAME,
            }
            .bt());
        }
        if !input.device().same_device(&device) {
            return Err(Error::DeviceMismatchBinaryOp {
                lhs: device.location(),
                rhs: input.device().location(),
                op: K::NAME,
            }
            .bt());
        }
        dense.push(input.detach().contiguous()?);
    }
    let dense = <[Tensor; IN]>::try_from(dense).map_err(|_| mismatch(K::NAME))?;
    match (dtype, device) {
        (DType::F32, Device::Cpu) => on_cpu::<K, f32, IN, OUT>(kernel, &dense),
        (DType::F64, Device::Cpu) => on_cpu::<K, f64, IN, OUT>(kernel, &dense),
        (DType::F16, Device::Cpu) => on_cpu::<K, f16, IN, OUT>(kernel, &dense),
        (DType::BF16, Device::Cpu) => on_cpu::<K, bf16, IN, OUT>(kernel, &dense),
        (DType::F32, Device::Cuda(device)) => cuda::run::<K, f32, IN, OUT>(kernel, &device, &dense),
        (DType::F64, Device::Cuda(device)) => cuda::run::<K, f64, IN, OUT>(kernel, &device, &dense),
        (DType::F16, Device::Cuda(device)) => cuda::run::<K, f16, IN, OUT>(kernel, &device, &dense),
        (DType::BF16, Device::Cuda(device)) => {
            cuda::run::<K, bf16, IN, OUT>(kernel, &device, &dense)
        }
        (DType::F32 | DType::F64 | DType::F16 | DType::BF16, _) => {
            kernel.composed(dense.each_ref())
        }
        _ => Err(Error::UnsupportedDTypeForOp(dtype, K::NAME).bt()),
    }
}

fn on_cpu<K: Kernel<IN, OUT>, T: Element, const IN: usize, const OUT: usize>(
    kernel: &K,
    inputs: &[Tensor; IN],
) -> Result<[Tensor; OUT]> {
    let shapes = kernel.shapes(inputs.each_ref())?;
    let mut outputs = shapes
        .each_ref()
        .map(|shape| vec![K::Output::<T>::zero(); shape.elem_count()]);
    {
        let storages = inputs.each_ref().map(|input| input.storage_and_layout());
        let mut slices: [&[T]; IN] = [&[]; IN];
        for (slice, (storage, layout)) in slices.iter_mut().zip(&storages) {
            *slice = slice_of(storage, layout, K::NAME)?;
        }
        kernel.cpu(slices, outputs.each_mut().map(Vec::as_mut_slice))?;
    }
    let mut shapes = shapes.into_iter();
    Ok(outputs.map(|output| {
        let storage = Storage::Cpu(K::Output::<T>::to_cpu_storage_owned(output));
        tensor(storage, shapes.next().unwrap_or(Shape::from(())))
    }))
}
