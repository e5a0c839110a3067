//! Fused computations on the CPU and on CUDA.

pub mod cuda;
mod element;
mod functions;
pub mod philox;
mod rows;

use candle_core::op::BackpropOp;
use candle_core::{DType, Device, Error, Layout, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};
use num_traits::Zero;

use cuda::CudaKernel;
pub use element::Element;
pub use functions::Functions;
pub use rows::{by_rows, max_of, rows_at_once, sum_of, sum_of_products};

/// A fused computation: it reads tensors of one floating-point type and makes new ones.
///
/// Sums are computed in [`Element::Sum`].
pub trait Kernel<const IN: usize, const OUT: usize>: CudaKernel<IN, OUT> {
    /// Also the name of the CUDA kernel, without the type.
    const NAME: &'static str;

    /// The type of the outputs, `T` or `T::Sum`.
    type Output<T: Element>: Element;

    /// The shapes of the outputs. The inputs have been checked by the caller.
    fn shapes(&self, inputs: [&Tensor; IN]) -> Result<[Shape; OUT]>;

    /// Writes the outputs, which are zeros. All slices are contiguous and have the sizes of their shapes.
    fn cpu<T: Element>(
        &self,
        inputs: [&[T]; IN],
        outputs: [&mut [Self::Output<T>]; OUT],
    ) -> Result<()>;

    /// Computes the same with candle's operations, for other devices.
    fn composed(&self, inputs: [&Tensor; IN]) -> Result<[Tensor; OUT]>;
}

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

/// The elements of a contiguous tensor on the CPU.
pub fn slice_of<'a, T: WithDType>(
    storage: &'a Storage,
    layout: &Layout,
    name: &'static str,
) -> Result<&'a [T]> {
    let Storage::Cpu(storage) = storage else {
        return Err(mismatch(name));
    };
    let (start, end) = layout.contiguous_offsets().ok_or_else(|| mismatch(name))?;
    let values = T::cpu_storage_as_slice(storage)?.get(start..end);
    values.ok_or_else(|| mismatch(name))
}

/// A tensor outside the graph.
pub fn tensor(storage: Storage, shape: Shape) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// Inputs do not match what the kernel was written for.
pub fn mismatch(name: &'static str) -> Error {
    Error::Msg(format!("{name}: inputs of unexpected number or layout")).bt()
}
