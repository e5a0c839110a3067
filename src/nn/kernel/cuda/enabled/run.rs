use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::{CudaDevice, Result, Shape, Storage, Tensor};

use super::view;
use crate::nn::kernel::{Element, Kernel, mismatch, tensor};

/// Runs a kernel on a device.
pub fn run<K: Kernel<IN, OUT>, T: Element, const IN: usize, const OUT: usize>(
    kernel: &K,
    device: &CudaDevice,
    inputs: &[Tensor; IN],
) -> Result<[Tensor; OUT]> {
    let shapes = kernel.shapes(inputs.each_ref())?;
    let mut outputs = Vec::with_capacity(OUT);
    for shape in &shapes {
        // A kernel writes all of its outputs. The driver refuses to allocate nothing.
        let len = shape.elem_count().max(1);
        // SAFETY: the kernel initializes it before anything reads it, on the same stream.
        outputs.push(unsafe { device.alloc::<K::Output<T>>(len)? });
    }
    let mut outputs: [CudaSlice<K::Output<T>>; OUT] =
        outputs.try_into().map_err(|_| mismatch(K::NAME))?;
    if shapes.iter().any(|shape| shape.elem_count() > 0) {
        let storages = inputs.each_ref().map(|input| input.storage_and_layout());
        let mut views = Vec::with_capacity(IN);
        for (storage, layout) in &storages {
            views.push(view::<T>(storage, layout, K::NAME)?);
        }
        let views = views.try_into().map_err(|_| mismatch(K::NAME))?;
        kernel.cuda::<T, K::Output<T>>(device, views, outputs.each_mut())?;
    }
    let mut shapes = shapes.into_iter();
    Ok(outputs.map(|output| {
        let storage = K::Output::<T>::wrap_cuda_slice(output, device.clone());
        let shape = shapes.next().unwrap_or(Shape::from(()));
        tensor(Storage::Cuda(storage), shape)
    }))
}
