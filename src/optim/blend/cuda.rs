//! The kernels of `kernels/blend.cu`, which read strided tensors of up to eight axes.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaStorageSlice as Slice, WrapErr};
use candle_core::{CudaDevice, CudaStorage, Error, Layout, Result, WithDType};

use super::{Blend, NAME, out_of_bounds, unsupported};
use crate::optim::blend::Axes;

const KERNELS: &str = include_str!(concat!(env!("OUT_DIR"), "/blend.ptx"));
const MODULE: &str = "candle-headroom-blend";

const THREADS: u32 = 256;
/// Threads stride by the grid's size, so a grid need not cover a tensor. This many blocks fill any GPU.
const MOST_BLOCKS: usize = 1 << 16;

/// [`Axes`], laid out as in kernels/axes.cuh.
type Words = [u64; 17];
const _: () = assert!(size_of::<Axes>() == size_of::<Words>());

/// Without `from` it only multiplies by `keep`: it reads `into` in place of `from`.
pub fn blend(
    op: &Blend,
    (into, into_layout): (&mut CudaStorage, &Layout),
    from: Option<(&CudaStorage, &Layout)>,
) -> Result<()> {
    let device = into.device.clone();
    let dtype = from.map_or(into.dtype(), |(from, _)| from.dtype());
    let layout = from.map_or(into_layout, |(_, layout)| layout);
    let at = (op, &device, into_layout, layout);
    let none = None::<&CudaSlice<u8>>;
    match (&mut into.slice, from.map(|(from, _)| &from.slice)) {
        (Slice::F32(into), None) => run("blend_f32_f32", into, none, at),
        (Slice::F64(into), None) => run("blend_f64_f64", into, none, at),
        (Slice::F32(into), Some(Slice::F32(from))) => run("blend_f32_f32", into, Some(from), at),
        (Slice::F32(into), Some(Slice::F16(from))) => run("blend_f32_f16", into, Some(from), at),
        (Slice::F32(into), Some(Slice::BF16(from))) => run("blend_f32_bf16", into, Some(from), at),
        (Slice::BF16(into), Some(Slice::F32(from))) if op.keep == 0. => {
            run("narrow_bf16_f32", into, Some(from), at)
        }
        (Slice::F16(into), Some(Slice::F32(from))) if op.keep == 0. => {
            run("narrow_f16_f32", into, Some(from), at)
        }
        (Slice::F64(into), Some(Slice::F64(from))) => run("blend_f64_f64", into, Some(from), at),
        _ => Err(unsupported(dtype)),
    }
}

fn run<T: DeviceRepr + WithDType, S: DeviceRepr>(
    kernel: &str,
    into: &mut CudaSlice<T>,
    from: Option<&CudaSlice<S>>,
    (op, device, into_layout, from_layout): (&Blend, &CudaDevice, &Layout, &Layout),
) -> Result<()> {
    let (keep, add) = match from {
        Some(_) => (op.keep, op.add),
        None => (0., op.keep),
    };
    let (keep, add) = (T::from_f64(keep), T::from_f64(add));
    if into_layout.shape() != from_layout.shape() {
        return Err(out_of_bounds());
    }
    let (start, end) = into_layout.contiguous_offsets().ok_or_else(out_of_bounds)?;
    let len = end - start;
    let axes = Axes::of(from_layout).map_err(|rank| {
        let what = format!("{NAME}: the source has {rank} axes that are not contiguous");
        Error::Msg(what).bt()
    })?;
    let axes: Words = bytemuck::cast(axes);
    let mut into = into.try_slice_mut(start..end).ok_or_else(out_of_bounds)?;
    let address = into.device_ptr(&device.cuda_stream()).0;
    // candle's layouts stay within their storage.
    let from = from.map(|from| from.try_slice(from_layout.start_offset()..));
    let from = from
        .map(|from| from.ok_or_else(out_of_bounds))
        .transpose()?;
    let function = device.get_or_load_custom_func(kernel, MODULE, KERNELS)?;
    let mut launch = function.builder();
    launch.arg(&len).arg(&mut into);
    match &from {
        Some(from) => launch.arg(from),
        None => launch.arg(&address),
    };
    launch.arg(&keep).arg(&add).arg(&axes);
    let blocks = len.div_ceil(THREADS as usize).clamp(1, MOST_BLOCKS);
    let config = LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the arguments are those of `BLEND` in kernels/blend.cu for these types; `into` holds `len` elements, and `from`, of the same
    // shape, as many at the offsets that `axes` gives. An element of `into` is read before it is written.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}
