//! The one place where kernels are launched.

use std::ops::Bound;

use candle_core::cuda_backend::cudarc::driver::{
    CudaView, CudaViewMut, LaunchArgs, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Result, Shape, Storage, Tensor};

use super::unwritten;
use crate::kernel::{IndexRangeError, mismatch, tensor};

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
pub(crate) use module;

/// An argument of a kernel.
pub enum Argument<'a> {
    /// The bits of a number of at most 8 bytes, the lowest first. CUDA's hosts are little-endian: a parameter of 4 bytes reads the
    /// lower half. 0 is also a null pointer.
    Bits(u64),
    /// What [`elements_of`] and [`target`] return, or a structure.
    Elements(Box<dyn Elements + 'a>),
}

impl Argument<'_> {
    /// How many elements a kernel may read or write there.
    pub fn count(&self) -> usize {
        match self {
            Self::Bits(_) => 0,
            Self::Elements(elements) => elements.count(),
        }
    }
}

/// Elements of a tensor, borrowed, or a structure.
pub trait Elements {
    fn count(&self) -> usize;

    fn push<'b>(&'b mut self, launch: &mut LaunchArgs<'b>);
}

/// A structure of numbers of 8 bytes, which is passed by value.
impl<const N: usize> Elements for [u64; N] {
    fn count(&self) -> usize {
        N
    }

    fn push<'b>(&'b mut self, launch: &mut LaunchArgs<'b>) {
        launch.arg(&*self);
    }
}

impl<T> Elements for CudaView<'_, T> {
    fn count(&self) -> usize {
        self.len()
    }

    fn push<'b>(&'b mut self, launch: &mut LaunchArgs<'b>) {
        launch.arg(&*self);
    }
}

impl<T> Elements for CudaViewMut<'_, T> {
    fn count(&self) -> usize {
        self.len()
    }

    fn push<'b>(&'b mut self, launch: &mut LaunchArgs<'b>) {
        launch.arg(self);
    }
}

/// A launch, but for the tensors. Only the files beside this one and attention/chunks/kernels.rs make one. They say of the kernels in
/// `kernels/` which numbers a kernel takes, and how many elements of each tensor it reads or writes for them in this grid. Tensors are
/// compared with that.
pub struct Launch {
    module: Module,
    pub grid: LaunchConfig,
    /// The first ones.
    pub arguments: Vec<Argument<'static>>,
    /// What it reads besides what it is given, and before that.
    pub tensors: Vec<Tensor>,
    /// The elements that it reads or writes of each tensor. One that is null or is read at strides has 0.
    counts: Vec<usize>,
    /// Whether it knows the strides of the tensors that it reads, of which `counts` has the elements from the first to the last.
    knows_strides: bool,
}

impl Launch {
    pub fn new(
        module: Module,
        grid: LaunchConfig,
        numbers: impl IntoIterator<Item = u64>,
        counts: impl Into<Vec<usize>>,
    ) -> Self {
        Self {
            module,
            grid,
            arguments: numbers.into_iter().map(Argument::Bits).collect(),
            tensors: Vec::new(),
            counts: counts.into(),
            knows_strides: false,
        }
    }

    /// For a kernel that is given the strides of the tensors that it reads.
    pub fn at_strides(self) -> Self {
        let knows_strides = true;
        Self {
            knows_strides,
            ..self
        }
    }

    /// Launches the kernel `name` for elements of a type. Without a layout, all of a target is written.
    ///
    /// # Errors
    /// If there is another number of tensors, or one has fewer elements than the kernel reads or writes.
    pub fn run<'a>(
        self,
        name: &'static str,
        device: &CudaDevice,
        dtype: DType,
        sources: &[Option<&Tensor>],
        targets: impl IntoIterator<Item = (&'a mut CudaStorage, Option<&'a Layout>)>,
    ) -> Result<()> {
        let sources = self.tensors.iter().map(Some).chain(sources.iter().copied());
        let storages: Vec<_> = sources
            .map(|source| source.map(Tensor::storage_and_layout))
            .collect();
        let mut tensors = Vec::new();
        for storage in &storages {
            tensors.push(match storage {
                Some((storage, layout)) if self.knows_strides => {
                    let range = (Bound::Included(layout.start_offset()), Bound::Unbounded);
                    elements_of(storage, range, name)?
                }
                Some((storage, layout)) => elements_of(storage, range(layout, name)?, name)?,
                None => Argument::Bits(0),
            });
        }
        for (storage, layout) in targets {
            tensors.push(target(storage, layout, name)?);
        }
        let mut pairs = tensors.iter().zip(&self.counts);
        if tensors.len() != self.counts.len() || pairs.any(|(it, least)| it.count() < *least) {
            return Err(mismatch(name));
        }
        let mut arguments: Vec<Argument> = self.arguments;
        arguments.extend(tensors);
        let (name, (module, code)) = (format!("{name}_{}", dtype.as_str()), self.module);
        let function = device.get_or_load_custom_func(&name, module, code)?;
        let (function, stream) = (function.into_cuda_function(), device.cuda_stream());
        let mut launch = stream.launch_builder(&function);
        for argument in &mut arguments {
            match argument {
                Argument::Bits(bits) => {
                    launch.arg(&*bits);
                }
                Argument::Elements(elements) => elements.push(&mut launch),
            }
        }
        // SAFETY: `Launch::new` was given the numbers that this kernel takes in `kernels/`, and how many elements of each tensor it accesses for
        // them in this grid: the tensors have as many, or the kernel knows their strides or that they are null. Who launches has checked their
        // types, and that those which it reads are initialized. The views borrow their tensors until the launch is on the stream, on which memory
        // is also freed; those that the kernel writes are borrowed mutably, so they overlap no other.
        unsafe { launch.launch(self.grid) }.w()?;
        Ok(())
    }

    /// The same with new tensors of these shapes and types as targets, all of which the kernel writes, after one that it changes.
    pub fn make<const N: usize>(
        self,
        name: &'static str,
        device: &CudaDevice,
        dtype: DType,
        sources: &[Option<&Tensor>],
        changed: Option<(&mut CudaStorage, &Layout)>,
        targets: [(Shape, DType); N],
    ) -> Result<[Tensor; N]> {
        let made = targets.iter();
        let made = made.map(|(shape, dtype)| unwritten(device, shape.elem_count(), *dtype));
        let mut made = made.collect::<Result<Vec<_>>>()?;
        let changed = changed.map(|(storage, layout)| (storage, Some(layout)));
        let written = made.iter_mut().map(|storage| (storage, None));
        let written = changed.into_iter().chain(written);
        self.run(name, device, dtype, sources, written)?;
        let made = made.into_iter().zip(targets);
        let tensors = made.map(|(storage, (shape, _))| tensor(Storage::Cuda(storage), shape));
        let tensors: Vec<_> = tensors.collect();
        tensors.try_into().map_err(|_| mismatch(name))
    }
}

/// A launch with a block for each row of `width` elements: a warp for short rows, more threads for longer ones.
pub fn each_row(rows: usize, width: usize) -> Result<LaunchConfig> {
    let threads = match width {
        0..=256 => 32,
        257..=1024 => 128,
        1025..=2048 => 256,
        _ => 512,
    };
    let blocks = u32::try_from(rows)
        .ok()
        .filter(|rows| *rows <= i32::MAX as u32);
    let blocks = blocks.ok_or_else(|| IndexRangeError::of("a launch", rows, "rows"))?;
    Ok(grid(blocks, threads))
}

/// A launch for elements, of which a thread takes four at once; the kernel strides by the grid's size.
pub fn each_element(elements: usize) -> LaunchConfig {
    const MOST_BLOCKS: usize = 1 << 16;
    let blocks = elements.div_ceil(4 * 256).clamp(1, MOST_BLOCKS);
    grid(blocks as u32, 256)
}

pub fn grid(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (blocks.max(1), 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// A part of a storage, of any type that a kernel knows.
macro_rules! part {
    ($slice:expr, $part:ident, $range:expr) => {
        match $slice {
            CudaStorageSlice::F32(slice) => slice.$part($range).map(elements),
            CudaStorageSlice::F64(slice) => slice.$part($range).map(elements),
            CudaStorageSlice::F16(slice) => slice.$part($range).map(elements),
            CudaStorageSlice::BF16(slice) => slice.$part($range).map(elements),
            CudaStorageSlice::I64(slice) => slice.$part($range).map(elements),
            CudaStorageSlice::U8(slice) => slice.$part($range).map(elements),
            _ => None,
        }
    };
}

fn elements<'a>(view: impl Elements + 'a) -> Argument<'a> {
    Argument::Elements(Box::new(view))
}

/// Elements of a tensor on a device, of f64, f32, f16, bf16, i64 or u8, to read.
fn elements_of<'a>(
    storage: &'a Storage,
    range: (Bound<usize>, Bound<usize>),
    name: &'static str,
) -> Result<Argument<'a>> {
    let Storage::Cuda(storage) = storage else {
        return Err(mismatch(name));
    };
    part!(&storage.slice, try_slice, range).ok_or_else(|| mismatch(name))
}

/// A contiguous tensor of f64, f32, f16, bf16, i64 or u8, or without a layout all of a storage, to write.
fn target<'a>(
    storage: &'a mut CudaStorage,
    layout: Option<&Layout>,
    name: &'static str,
) -> Result<Argument<'a>> {
    let range = match layout {
        Some(layout) => range(layout, name)?,
        None => (Bound::Unbounded, Bound::Unbounded),
    };
    part!(&mut storage.slice, try_slice_mut, range).ok_or_else(|| mismatch(name))
}

/// The elements of a contiguous tensor.
fn range(layout: &Layout, name: &'static str) -> Result<(Bound<usize>, Bound<usize>)> {
    let (start, end) = layout.contiguous_offsets().ok_or_else(|| mismatch(name))?;
    Ok((Bound::Included(start), Bound::Excluded(end)))
}
