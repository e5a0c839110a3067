use std::ops::Range;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{CudaDevice, CudaStorage, Layout, Result};

use super::{Blend, Scale, out_of_bounds, unsupported};
use crate::optim::axes::Axes;

const KERNELS: &str = include_str!(concat!(env!("OUT_DIR"), "/blend.ptx"));
const MODULE: &str = "candle-headroom-blend";

const THREADS: u32 = 256;
/// Threads stride by the grid's size, so a grid need not cover a tensor. This many blocks fill any GPU.
const MOST_BLOCKS: usize = 1 << 16;

// SAFETY: plain integers, laid out as `Axes` in kernels/axes.cuh.
unsafe impl DeviceRepr for Axes {}

pub fn scale(op: &Scale, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
    use CudaStorageSlice as S;
    let device = storage.device.clone();
    match &mut storage.slice {
        S::F32(values) => launch_scale(&device, "scale_f32", values, layout, op.keep as f32),
        S::F64(values) => launch_scale(&device, "scale_f64", values, layout, op.keep),
        _ => Err(unsupported(storage.dtype())),
    }
}

fn launch_scale<T: DeviceRepr>(
    device: &CudaDevice,
    kernel: &str,
    values: &mut CudaSlice<T>,
    layout: &Layout,
    keep: T,
) -> Result<()> {
    let range = contiguous(layout)?;
    let len = range.len();
    let mut values = values.try_slice_mut(range).ok_or_else(out_of_bounds)?;
    let function = device.get_or_load_custom_func(kernel, MODULE, KERNELS)?;
    let mut launch = function.builder();
    launch.arg(&len).arg(&mut values).arg(&keep);
    // SAFETY: the arguments are those of `scale` in kernels/blend.cu for this type, and `values` holds `len` elements.
    unsafe { launch.launch(config(len)) }.w()?;
    Ok(())
}

pub fn blend(
    op: &Blend,
    into: &mut CudaStorage,
    from: &CudaStorage,
    layouts: (&Layout, &Layout),
) -> Result<()> {
    use CudaStorageSlice as S;
    let device = into.device.clone();
    let factors = (op.keep as f32, op.add as f32);
    match (&mut into.slice, &from.slice) {
        (S::F32(into), S::F32(from)) => run(&device, "blend_f32_f32", into, from, layouts, factors),
        (S::F32(into), S::F16(from)) => run(&device, "blend_f32_f16", into, from, layouts, factors),
        (S::F32(into), S::BF16(from)) => {
            run(&device, "blend_f32_bf16", into, from, layouts, factors)
        }
        (S::F64(into), S::F64(from)) => {
            let factors = (op.keep, op.add);
            run(&device, "blend_f64_f64", into, from, layouts, factors)
        }
        _ => Err(unsupported(from.dtype())),
    }
}

fn run<T: DeviceRepr, S: DeviceRepr>(
    device: &CudaDevice,
    kernel: &str,
    into: &mut CudaSlice<T>,
    from: &CudaSlice<S>,
    (into_layout, from_layout): (&Layout, &Layout),
    (keep, add): (T, T),
) -> Result<()> {
    if into_layout.shape() != from_layout.shape() {
        return Err(out_of_bounds());
    }
    let range = contiguous(into_layout)?;
    let len = range.len();
    let axes = Axes::of(from_layout).map_err(|_| out_of_bounds())?;
    let mut into = into.try_slice_mut(range).ok_or_else(out_of_bounds)?;
    // candle's layouts stay within their storage.
    let from = from.try_slice(from_layout.start_offset()..);
    let from = from.ok_or_else(out_of_bounds)?;
    let function = device.get_or_load_custom_func(kernel, MODULE, KERNELS)?;
    let mut launch = function.builder();
    launch.arg(&len).arg(&mut into).arg(&from);
    launch.arg(&keep).arg(&add).arg(&axes);
    // SAFETY: the arguments are those of `blend` in kernels/blend.cu for these types; `into` holds `len` elements, and `from`, of
    // the same shape, as many at the offsets that `axes` gives.
    unsafe { launch.launch(config(len)) }.w()?;
    Ok(())
}

fn contiguous(layout: &Layout) -> Result<Range<usize>> {
    let offsets = layout.contiguous_offsets().ok_or_else(out_of_bounds)?;
    Ok(offsets.0..offsets.1)
}

fn config(len: usize) -> LaunchConfig {
    let blocks = len.div_ceil(THREADS as usize).clamp(1, MOST_BLOCKS);
    LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    }
}
