//! Large tensors: zeros, of which single elements are written and read.

use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DeviceRepr, LaunchConfig, ValidAsZeroBits,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Device, Error, Result, Shape, Storage, Tensor};
use half::bf16;

use super::WIDTH;

/// An element of a tensor, as the number that it is.
pub trait Value: DeviceRepr + ValidAsZeroBits + Copy {
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
}

macro_rules! value {
    ($($type:ty: $of:expr, $value:expr);+) => {$(
        impl Value for $type {
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn value(self) -> f64 {
                $value(self)
            }
        }
    )+};
}
value!(bf16: bf16::from_f64, bf16::to_f64; f32: |value| value as f32, f64::from; i64: |value| value as i64, |value| value as f64;
    u32: |value| value as u32, f64::from; u8: |value| value as u8, f64::from);

/// A device, and the number of elements that kernels are tried with.
pub struct Large {
    pub elements: usize,
    device: CudaDevice,
    stream: Arc<CudaStream>,
}

impl Large {
    pub fn new(elements: usize) -> Self {
        let device = Device::new_cuda_with_stream(0).expect("a device");
        let device = device.as_cuda_device().expect("CUDA's").clone();
        let stream = device.cuda_stream();
        Self {
            elements,
            device,
            stream,
        }
    }

    pub fn device(&self) -> Device {
        Device::Cuda(self.device.clone())
    }

    /// The number of rows of all elements.
    pub fn rows(&self) -> usize {
        self.elements / WIDTH
    }

    /// The elements that are not zero: at both ends, and at 2^31 and 2^32 and before them.
    pub fn marks(&self) -> Vec<(usize, f64)> {
        let places = [
            (0, 1.),
            ((1 << 31) - 1, 2.),
            (1 << 31, -1.),
            ((1 << 32) - 1, 0.5),
            (1 << 32, -1.5),
            (self.elements - 1, 3.),
        ];
        let places = places.into_iter();
        places.filter(|(at, _)| *at < self.elements).collect()
    }

    pub fn zeros<T: Value>(&self, len: usize) -> Result<CudaSlice<T>> {
        self.stream.alloc_zeros(len).w()
    }

    /// All of a small buffer.
    pub fn full<T: Value>(&self, values: &[f64]) -> Result<CudaSlice<T>> {
        let values: Vec<_> = values.iter().map(|value| T::of(*value)).collect();
        self.stream.clone_htod(&values).w()
    }

    pub fn put<T: Value>(&self, into: &mut CudaSlice<T>, at: usize, value: f64) -> Result<()> {
        let mut place = into.slice_mut(at..=at);
        self.stream.memcpy_htod(&[T::of(value)], &mut place).w()
    }

    pub fn take<T: Value>(&self, from: &CudaSlice<T>, at: usize) -> Result<f64> {
        let value = self.stream.clone_dtoh(&from.slice(at..=at)).w()?;
        Ok(value[0].value())
    }

    /// Zeros but for the marks.
    pub fn marked<T: Value>(&self) -> Result<CudaSlice<T>> {
        let mut all = self.zeros(self.elements)?;
        for (at, value) in self.marks() {
            self.put(&mut all, at, value)?;
        }
        Ok(all)
    }

    /// Zeros but for the first and the last row, which are the same.
    pub fn with_rows<T: Value>(&self, len: usize, row: &[f64]) -> Result<CudaSlice<T>> {
        self.with_ends(len, [row; 2])
    }

    /// Zeros but for the first and the last row. They differ where only reads could go to the wrong one.
    pub fn with_ends<T: Value>(&self, len: usize, rows: [&[f64]; 2]) -> Result<CudaSlice<T>> {
        let mut all = self.zeros(len)?;
        for (first, row) in [0, len - rows[1].len()].into_iter().zip(rows) {
            for (at, value) in row.iter().enumerate() {
                self.put(&mut all, first + at, *value)?;
            }
        }
        Ok(all)
    }

    pub fn expect<T: Value>(&self, of: &CudaSlice<T>, at: usize, expected: f64) -> Result<()> {
        let found = self.take(of, at)?;
        // As many digits as bf16 has.
        match (found - expected).abs() <= expected.abs() / 100. + 1e-6 {
            true => Ok(()),
            false => Err(Error::Msg(format!(
                "element {at}: {found}, expected {expected}"
            ))),
        }
    }

    /// Compares all marks with a function of them.
    pub fn expect_marks<T: Value>(
        &self,
        of: &CudaSlice<T>,
        expected: impl Fn(f64) -> f64,
    ) -> Result<()> {
        let mut marks = self.marks().into_iter();
        marks.try_for_each(|(at, value)| self.expect(of, at, expected(value)))
    }

    /// Compares the first and the last row.
    pub fn expect_rows<T: Value>(&self, of: &CudaSlice<T>, row: &[f64]) -> Result<()> {
        for first in [0, of.len() - row.len()] {
            for (at, value) in row.iter().enumerate() {
                self.expect(of, first + at, *value)?;
            }
        }
        Ok(())
    }

    pub fn tensor<T: CudaDType>(&self, values: CudaSlice<T>, shape: impl Into<Shape>) -> Tensor {
        let storage = CudaStorage::wrap_cuda_slice(values, self.device.clone());
        Tensor::from_storage(
            Storage::Cuda(storage),
            shape.into(),
            BackpropOp::none(),
            false,
        )
    }

    /// Compares an element of a tensor, counted in its own order.
    pub fn expect_of<T: Value + CudaDType>(
        &self,
        tensor: &Tensor,
        at: usize,
        expected: f64,
    ) -> Result<()> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else {
            return Err(Error::Msg("not CUDA's".to_owned()));
        };
        let first = layout.start_offset();
        self.expect(storage.as_cuda_slice::<T>()?, first + at, expected)
    }

    /// Compares the first element of a tensor of marks, the last one, and that at 2^31 or 2^32 beside it, with a function of them: a launch with a
    /// thread for each element has these in its first and last block.
    pub fn expect_ends_of<T: Value + CudaDType>(
        &self,
        tensor: &Tensor,
        expected: impl Fn(f64) -> f64,
    ) -> Result<()> {
        let marks = self.marks();
        let mut ends = marks[..1].iter().chain(&marks[marks.len() - 2..]);
        ends.try_for_each(|(at, value)| self.expect_of::<T>(tensor, *at, expected(*value)))
    }

    /// Compares all marks of a tensor with a function of them.
    pub fn expect_marks_of<T: Value + CudaDType>(
        &self,
        tensor: &Tensor,
        expected: impl Fn(f64) -> f64,
    ) -> Result<()> {
        let mut marks = self.marks().into_iter();
        marks.try_for_each(|(at, value)| self.expect_of::<T>(tensor, at, expected(value)))
    }

    pub fn function(&self, module: &str, code: &str, kernel: &str) -> Result<CudaFunction> {
        let function = self.device.get_or_load_custom_func(kernel, module, code)?;
        Ok(function.into_cuda_function())
    }

    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().w()
    }
}

/// A block for each row, as crates/nn/src/kernel/cuda/enabled/launch.rs has it.
pub fn each_row(rows: usize, width: usize) -> LaunchConfig {
    let threads = match width {
        0..=256 => 32,
        257..=1024 => 128,
        1025..=2048 => 256,
        _ => 512,
    };
    grid(rows, threads)
}

/// Blocks that loop over elements, four for each thread, as there.
pub fn each_element(elements: usize) -> LaunchConfig {
    grid(elements.div_ceil(4 * 256).min(1 << 16), 256)
}

pub fn grid(blocks: usize, threads: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// Launches a kernel of a compiled file with these arguments: numbers, and buffers by `&` or `&mut`.
macro_rules! launch {
    ($large:expr, $code:expr, $kernel:expr, $grid:expr; $($argument:expr),+ $(,)?) => {{
        use candle_core::cuda_backend::WrapErr;
        use candle_core::cuda_backend::cudarc::driver::PushKernelArg;

        let function = $large.function(concat!("large-", $kernel), $code, $kernel)?;
        let mut launch = $large.stream().launch_builder(&function);
        $(
            // Bound, so that what it borrows lives until the launch.
            let argument = $argument;
            launch.arg(argument);
        )+
        // SAFETY: the arguments are those of the kernel, and the buffers have the elements that it reads and writes for these numbers: if an index
        // is wrong, the simulated driver refuses the access, and nothing runs on a GPU here.
        unsafe { launch.launch($grid) }.w()?;
        $large.synchronize()?;
    }};
}
pub(super) use launch;
