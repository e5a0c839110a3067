mod activation;
mod bias;
mod cells;
mod cross_entropy;
mod dispatch;
mod dropout;
mod linear_cross_entropy;
mod norm;
mod product;
mod softmax;

use std::sync::Arc;

use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, CudaView, DeviceRepr, LaunchArgs, LaunchConfig,
};
use candle_core::{CudaDevice, CudaStorage, Error, Layout, Result, Storage};
use half::{bf16, f16};

use crate::nn::kernel::mismatch;

pub use bias::add_to_rows;
pub use dispatch::run;
pub use linear_cross_entropy::{losses_of_rows, scale};
pub use product::multiply;

/// A compiled file of `kernels/`: its name among the device's modules, and its code.
pub type Module = (&'static str, &'static str);

/// The module compiled from the file of this name.
macro_rules! module {
    ($name:literal) => {
        (
            concat!("candle-headroom-", $name),
            include_str!(concat!(env!("OUT_DIR"), "/", $name, ".ptx")),
        )
    };
}
pub(in crate::nn) use module;

/// A type that CUDA kernels read and write.
pub trait CudaElement: CudaDType + DeviceRepr {
    /// The end of the names of the kernels for this type.
    const SUFFIX: &'static str;

    /// The type to compute in: f64 for f64, f32 for all others.
    type Wide: CudaElement;
}

impl CudaElement for f32 {
    const SUFFIX: &'static str = "f32";

    type Wide = f32;
}

impl CudaElement for f64 {
    const SUFFIX: &'static str = "f64";

    type Wide = f64;
}

impl CudaElement for f16 {
    const SUFFIX: &'static str = "f16";

    type Wide = f32;
}

impl CudaElement for bf16 {
    const SUFFIX: &'static str = "bf16";

    type Wide = f32;
}

/// A kernel that also runs on CUDA.
pub trait CudaKernel<const IN: usize, const OUT: usize> {
    /// Launches the kernel on contiguous inputs. The outputs are not initialized.
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        inputs: [CudaView<'_, T>; IN],
        outputs: [&mut CudaSlice<O>; OUT],
    ) -> Result<()>;
}

/// A launch with a block for each row of `width` elements: a warp for short rows, more threads for longer ones.
pub fn each_row(rows: usize, width: usize) -> Result<LaunchConfig> {
    let threads = match width {
        0..=256 => 32,
        257..=1024 => 128,
        _ => 256,
    };
    let blocks = u32::try_from(rows)
        .ok()
        .filter(|rows| *rows <= i32::MAX as u32);
    let blocks = blocks.ok_or_else(|| {
        Error::Msg(format!("{rows} rows: a launch takes at most 2147483647")).bt()
    })?;
    Ok(LaunchConfig {
        grid_dim: (blocks.max(1), 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: 0,
    })
}

/// A launch for elements; the kernel strides by the grid's size.
pub fn each_element(elements: usize) -> LaunchConfig {
    const MOST_BLOCKS: usize = 1 << 16;
    let blocks = elements.div_ceil(256).clamp(1, MOST_BLOCKS);
    LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (256, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// A kernel that is loaded, and the stream to launch it on.
pub struct Function {
    function: CudaFunction,
    stream: Arc<CudaStream>,
}

impl Function {
    /// Begins a launch: add the arguments, then launch.
    pub fn builder(&self) -> LaunchArgs<'_> {
        self.stream.launch_builder(&self.function)
    }
}

/// Loads the kernel `name` for elements of type `T`.
pub fn function<T: CudaElement>(
    device: &CudaDevice,
    (module, code): Module,
    name: &str,
) -> Result<Function> {
    let name = format!("{name}_{}", T::SUFFIX);
    let function = device.get_or_load_custom_func(&name, module, code)?;
    Ok(Function {
        function: function.into_cuda_function(),
        stream: device.cuda_stream(),
    })
}

/// The elements of a contiguous tensor on a device.
pub fn view<'a, T: CudaDType>(
    storage: &'a Storage,
    layout: &Layout,
    name: &'static str,
) -> Result<CudaView<'a, T>> {
    let Storage::Cuda(storage) = storage else {
        return Err(mismatch(name));
    };
    let (start, end) = layout.contiguous_offsets().ok_or_else(|| mismatch(name))?;
    let slice = T::as_cuda_slice(storage)?;
    slice.try_slice(start..end).ok_or_else(|| mismatch(name))
}

/// The smallest storage that the driver allocates.
pub fn smallest(device: &CudaDevice) -> Result<CudaStorage> {
    let slice = device.alloc_zeros::<u8>(1)?;
    Ok(u8::wrap_cuda_slice(slice, device.clone()))
}
