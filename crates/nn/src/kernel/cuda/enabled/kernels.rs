//! How each kernel is launched.

use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::LaunchConfig;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape, Storage, Tensor};

use super::launch::{
    Argument, Module, each_element, each_row, grid, launch, module, source_of, target,
};
use crate::bias::SumOfRows;
use crate::kernel::{Kernel, Plan, mismatch, no_kernels, sum_type, tensor};
use crate::loss::cross_entropy::{CrossEntropy, CrossEntropyBackward};
use crate::norm::cells::{CellGradient, CellScaling, CellSums};
use crate::norm::rows::{RowsBackward, RowsForward};
use crate::ops::curves::Curve;
use crate::ops::dropout::Mask;
use crate::ops::elementwise::{Slopes, Values};
use crate::ops::softmax::{LogSoftmaxBackward, Softmax, SoftmaxBackward};
use crate::ops::swiglu::{Swiglu, SwigluBackward};

const ACTIVATION: Module = module!("activation");
const CELLS: Module = module!("cells");
const CROSS_ENTROPY: Module = module!("cross_entropy");
const DROPOUT: Module = module!("dropout");
const NORM: Module = module!("norm");
const SOFTMAX: Module = module!("softmax");

/// A kernel that also runs on CUDA.
///
/// # Safety
/// The numbers and tensors of [`launch`](Self::launch), the inputs and the outputs, in this order, must be the arguments of the kernel
/// of this name in the module. With these numbers and in this grid it must stay within the lengths of all tensors, and write all
/// elements of the outputs and nothing else. All tensors are contiguous, and outputs are new, so they overlap nothing.
pub unsafe trait CudaKernel<const IN: usize, const OUT: usize> {
    fn launch(&self, inputs: [&Tensor; IN]) -> Result<Launch>;

    /// Writes the outputs.
    fn write(&self, launch: Launch, call: Call, outputs: &mut [CudaStorage]) -> Result<()> {
        // SAFETY: the trait's promise.
        unsafe { launch.run(&call, call.name, outputs) }
    }
}

/// Runs a kernel on a device.
pub fn run<K: Kernel<IN, OUT>, const IN: usize, const OUT: usize>(
    kernel: &K,
    device: &CudaDevice,
    inputs: &[Tensor],
    plan: &Plan,
) -> Result<Vec<Tensor>> {
    let last = inputs.last().ok_or_else(|| mismatch(K::NAME))?;
    let call = Call {
        name: K::NAME,
        device,
        dtype: last.dtype(),
        inputs,
    };
    let mut outputs = call.outputs(plan)?;
    if plan.outputs.iter().any(|(shape, _)| shape.elem_count() > 0) {
        let given: Vec<_> = inputs.iter().collect();
        let given = given.try_into().map_err(|_| mismatch(K::NAME))?;
        kernel.write(kernel.launch(given)?, call, &mut outputs)?;
    }
    let outputs = outputs.into_iter().zip(&plan.outputs);
    let outputs = outputs.map(|(output, (shape, _))| tensor(Storage::Cuda(output), shape.clone()));
    Ok(outputs.collect())
}

/// What a kernel is run on.
pub struct Call<'a> {
    name: &'static str,
    device: &'a CudaDevice,
    /// The kernel's.
    dtype: DType,
    inputs: &'a [Tensor],
}

impl Call<'_> {
    fn outputs(&self, plan: &Plan) -> Result<Vec<CudaStorage>> {
        let dtype = match plan.is_wide {
            true => sum_type(self.dtype),
            false => self.dtype,
        };
        let outputs = plan.outputs.iter();
        outputs
            .map(|(shape, _)| self.alloc(shape.elem_count(), dtype))
            .collect()
    }

    /// Memory that a kernel writes before anything reads it.
    fn alloc(&self, len: usize, dtype: DType) -> Result<CudaStorage> {
        // The driver refuses to allocate nothing.
        let shape = Shape::from(len.max(1));
        // SAFETY: the kernels write all of the outputs before anything reads them, on the same stream.
        unsafe { self.device.alloc_uninit(&shape, dtype) }
    }
}

/// A launch, but for the inputs and the outputs.
pub struct Launch {
    module: Module,
    grid: LaunchConfig,
    numbers: Vec<u64>,
    tensors: Vec<Tensor>,
}

impl Launch {
    fn new(module: Module, grid: LaunchConfig, numbers: impl Into<Vec<u64>>) -> Self {
        Self {
            module,
            grid,
            numbers: numbers.into(),
            tensors: Vec::new(),
        }
    }

    /// # Safety
    /// As for [`CudaKernel`].
    unsafe fn run<'a>(
        &self,
        call: &Call,
        name: &str,
        outputs: impl IntoIterator<Item = &'a mut CudaStorage>,
    ) -> Result<()> {
        let inputs = self.tensors.iter().chain(call.inputs);
        let storages: Vec<_> = inputs.map(Tensor::storage_and_layout).collect();
        let mut arguments: Vec<_> = self.numbers.iter().copied().map(Argument::Bits).collect();
        for (storage, layout) in &storages {
            arguments.push(source_of(storage, layout, call.name)?);
        }
        for output in outputs {
            arguments.push(target(output, None, call.name)?);
        }
        let (device, dtype) = (call.device, call.dtype);
        // SAFETY: the caller's promise. The outputs are borrowed mutably.
        unsafe { launch(device, self.module, name, dtype, self.grid, &mut arguments) }
    }
}

// SAFETY: there is no such kernel, and no launch.
unsafe impl CudaKernel<1, 1> for SumOfRows {
    fn launch(&self, _: [&Tensor; 1]) -> Result<Launch> {
        Err(no_kernels(Self::NAME))
    }
}

/// The curve's number in kernels/activation.cu, and its parameters.
fn numbers(curve: Curve) -> [u64; 3] {
    let (number, first, second) = match curve {
        Curve::Gelu => (0, 0., 0.),
        Curve::GeluErf => (1, 0., 0.),
        Curve::Silu => (2, 0., 0.),
        Curve::Relu => (3, 0., 0.),
        Curve::Sigmoid => (4, 0., 0.),
        Curve::Elu(alpha) => (5, alpha, 0.),
        Curve::Relu2 => (6, 0., 0.),
        Curve::Relu6 => (7, 0., 0.),
        Curve::HardSigmoid => (8, 0., 0.),
        Curve::HardSwish => (9, 0., 0.),
        Curve::Mish => (10, 0., 0.),
        Curve::LeakyRelu(slope) => (11, slope, 0.),
        Curve::Selu { alpha, gamma } => (12, alpha, gamma),
    };
    [number, f64::to_bits(first), f64::to_bits(second)]
}

// SAFETY: (len, curve, its parameters, xs, ys), both tensors of `len` elements.
unsafe impl CudaKernel<1, 1> for Values {
    fn launch(&self, [xs]: [&Tensor; 1]) -> Result<Launch> {
        let (len, [curve, first, second]) = (xs.elem_count(), numbers(self.0));
        let numbers = [len as u64, curve, first, second];
        Ok(Launch::new(ACTIVATION, each_element(len), numbers))
    }
}

// SAFETY: (len, curve, its parameters, xs, dys, dxs), all tensors of `len` elements: the caller gives x and dy of one shape.
unsafe impl CudaKernel<2, 1> for Slopes {
    fn launch(&self, [xs, _]: [&Tensor; 2]) -> Result<Launch> {
        Values(self.0).launch([xs])
    }
}

// SAFETY: (len, width, xs, ys), where ys have `len` elements in rows of `width`, and xs twice as many.
unsafe impl CudaKernel<1, 1> for Swiglu {
    fn launch(&self, [xs]: [&Tensor; 1]) -> Result<Launch> {
        let len = xs.elem_count() / 2;
        let numbers = [len as u64, self.width as u64];
        Ok(Launch::new(ACTIVATION, each_element(len), numbers))
    }
}

// SAFETY: (len, width, xs, dys, dxs), where dys have `len` elements in rows of `width`, xs and dxs twice as many.
unsafe impl CudaKernel<2, 1> for SwigluBackward {
    fn launch(&self, [xs, _]: [&Tensor; 2]) -> Result<Launch> {
        let width = self.width;
        Swiglu { width }.launch([xs])
    }
}

// SAFETY: (len, seed, stream, threshold, scale, xs, ys), both tensors of `len` elements. A thread takes four.
unsafe impl CudaKernel<1, 1> for Mask {
    fn launch(&self, [xs]: [&Tensor; 1]) -> Result<Launch> {
        let len = xs.elem_count();
        let threshold = u64::from(self.threshold);
        let (draw, scale) = (self.draw, self.scale.to_bits());
        let numbers = [len as u64, draw.seed, draw.call, threshold, scale];
        Ok(Launch::new(DROPOUT, each_element(len.div_ceil(4)), numbers))
    }
}

/// A block for each row of a tensor.
fn rows_of(xs: &Tensor, width: usize) -> Result<LaunchConfig> {
    each_row(xs.elem_count() / width.max(1), width)
}

// SAFETY: (width, logarithm, xs, ys), both tensors of as many rows of `width` elements as there are blocks.
unsafe impl CudaKernel<1, 1> for Softmax {
    fn launch(&self, [xs]: [&Tensor; 1]) -> Result<Launch> {
        let numbers = [self.width as u64, u64::from(self.logarithm)];
        Ok(Launch::new(SOFTMAX, rows_of(xs, self.width)?, numbers))
    }
}

// SAFETY: (width, ys, dys, dxs), all tensors of as many rows of `width` elements as there are blocks.
unsafe impl CudaKernel<2, 1> for SoftmaxBackward {
    fn launch(&self, [ys, _]: [&Tensor; 2]) -> Result<Launch> {
        Ok(Launch::new(
            SOFTMAX,
            rows_of(ys, self.width)?,
            [self.width as u64],
        ))
    }
}

// SAFETY: as for `SoftmaxBackward`.
unsafe impl CudaKernel<2, 1> for LogSoftmaxBackward {
    fn launch(&self, [ys, _]: [&Tensor; 2]) -> Result<Launch> {
        Ok(Launch::new(
            SOFTMAX,
            rows_of(ys, self.width)?,
            [self.width as u64],
        ))
    }
}

// SAFETY: (width, none, targets, xs, losses, logs), where xs have a row of `width` elements for each block, the others one element; of
// a row the kernel reads the target's element only if the target is below `width`.
unsafe impl CudaKernel<1, 2> for CrossEntropy {
    fn launch(&self, [xs]: [&Tensor; 1]) -> Result<Launch> {
        let (targets, none) = self.targets.numbers()?;
        let grid = rows_of(xs, self.width)?;
        let mut launch = Launch::new(CROSS_ENTROPY, grid, [self.width as u64, none as u64]);
        launch.tensors.push(targets);
        Ok(launch)
    }
}

// SAFETY: (width, none, targets, logs, factor, xs, dxs), where xs and dxs have a row of `width` elements for each block, targets and
// logs one element; factor has one.
unsafe impl CudaKernel<3, 1> for CrossEntropyBackward {
    fn launch(&self, [_, _, xs]: [&Tensor; 3]) -> Result<Launch> {
        self.0.launch([xs])
    }
}

// SAFETY: (outer, cells, inner, of deviations, means, xs, dys, sums, products), where xs and dys have outer · cells · inner elements and
// the others one for each cell, that is for each block.
unsafe impl CudaKernel<3, 2> for CellSums {
    fn launch(&self, _: [&Tensor; 3]) -> Result<Launch> {
        let cells = self.cells;
        let sizes = [cells.outer, cells.cells, cells.inner].map(|size| size as u64);
        let [outer, count, inner] = sizes;
        let numbers = [outer, count, inner, u64::from(self.of_deviations)];
        Ok(Launch::new(
            CELLS,
            each_row(cells.cells, cells.len())?,
            numbers,
        ))
    }
}

// SAFETY: (len, cells, inner, means, scales, shifts, xs, ys), where xs and ys have `len` elements, the others one for each cell.
unsafe impl CudaKernel<4, 1> for CellScaling {
    fn launch(&self, [.., xs]: [&Tensor; 4]) -> Result<Launch> {
        let (len, cells) = (xs.elem_count(), self.0);
        let numbers = [len, cells.cells, cells.inner].map(|size| size as u64);
        Ok(Launch::new(CELLS, each_element(len), numbers))
    }
}

// SAFETY: (len, cells, inner, means, scales, slopes, shifts, xs, dys, dxs), where xs, dys and dxs have `len` elements, the others one
// for each cell.
unsafe impl CudaKernel<6, 1> for CellGradient {
    fn launch(&self, [mean, scale, _, shift, .., xs]: [&Tensor; 6]) -> Result<Launch> {
        CellScaling(self.0).launch([mean, scale, shift, xs])
    }
}

// SAFETY: (width, eps, center, xs, weight, bias, ys), where xs and ys have a row of `width` elements for each block, the others one.
unsafe impl CudaKernel<3, 1> for RowsForward {
    fn launch(&self, [xs, ..]: [&Tensor; 3]) -> Result<Launch> {
        let rows = self.0;
        let numbers = [
            rows.width as u64,
            rows.eps.to_bits(),
            u64::from(rows.center),
        ];
        Ok(Launch::new(NORM, rows_of(xs, rows.width)?, numbers))
    }
}

// SAFETY: (width, rows, rows of a block, eps, center, with sums, xs, weight, dys, dxs, sums), where xs, dys and dxs have `rows` rows of
// `width` elements, the weight one and, with sums, these two rows for each block. `write` gives dxs and the sums.
unsafe impl CudaKernel<3, 3> for RowsBackward {
    fn launch(&self, [xs, ..]: [&Tensor; 3]) -> Result<Launch> {
        let width = self.rows.width;
        let rows = xs.elem_count() / width.max(1);
        let of_block = self.rows_of_block(rows);
        let (eps, center) = (self.rows.eps.to_bits(), u64::from(self.rows.center));
        let with_sums = u64::from(self.with_sums);
        let numbers = [
            width as u64,
            rows as u64,
            of_block as u64,
            eps,
            center,
            with_sums,
        ];
        Ok(Launch::new(
            NORM,
            each_row(rows.div_ceil(of_block), width)?,
            numbers,
        ))
    }

    fn write(&self, launch: Launch, call: Call, outputs: &mut [CudaStorage]) -> Result<()> {
        let [dxs, dweight, dbias] = outputs else {
            return Err(mismatch(call.name));
        };
        if !self.with_sums {
            // SAFETY: as above; the kernel does not touch the sums.
            return unsafe { launch.run(&call, call.name, [dxs, dweight]) };
        }
        let (blocks, width) = (launch.grid.grid_dim.0 as usize, self.rows.width);
        let mut sums = call.alloc(blocks * 2 * width, sum_type(call.dtype))?;
        // SAFETY: as above, with two rows for each block.
        unsafe { launch.run(&call, call.name, [dxs, &mut sums])? };
        let add = Launch::new(
            NORM,
            grid((2 * width).div_ceil(32) as u32, 256),
            [width as u64, blocks as u64],
        );
        let sums = tensor(Storage::Cuda(sums), Shape::from(blocks * 2 * width));
        let inputs = &[sums];
        // SAFETY: (width, parts, sums, dw, db), where the sums have two rows of `width` elements for each part, and dw and db one. A block
        // takes 32 of the elements of both.
        unsafe { add.run(&Call { inputs, ..call }, "rows_sums", [dweight, dbias]) }
    }
}

impl RowsBackward {
    /// More rows for each block make fewer parts of the sums. It does not depend on the device, so neither do the sums.
    fn rows_of_block(&self, rows: usize) -> usize {
        const LEAST_ROWS: usize = 8;
        const MOST_BLOCKS: usize = 512;
        match self.with_sums {
            true => rows.div_ceil(MOST_BLOCKS).max(LEAST_ROWS),
            false => 1,
        }
    }
}
