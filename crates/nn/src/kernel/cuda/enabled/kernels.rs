//! How each kernel that makes new tensors is launched.

use candle_core::cuda_backend::cudarc::driver::LaunchConfig;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape, Storage, Tensor};

use super::launch::{Launch, Module, each_element, each_row, grid, module};
use super::unwritten;
use crate::bias::SumOfRows;
use crate::kernel::{Kernel, Plan, dense, mismatch, no_kernels, sum_type, tensor};
use crate::layer_norm::{Rows, RowsBackward};
use crate::loss::cross_entropy::CrossEntropy;
use crate::norm::{CellSums, Cells};
use crate::ops::curves::Curve;
use crate::ops::dropout::Mask;
use crate::ops::elementwise::{Gated, Swiglu};
use crate::ops::softmax::Softmax;

const ACTIVATION: Module = module!("activation");
const CELLS: Module = module!("cells");
const CROSS_ENTROPY: Module = module!("cross_entropy");
const DROPOUT: Module = module!("dropout");
const EMBEDDING: Module = module!("embedding");
const GATED: Module = module!("gated");
const NORM: Module = module!("norm");
const SOFTMAX: Module = module!("softmax");

/// A kernel that also runs on CUDA.
pub trait CudaKernel<const IN: usize, const OUT: usize> {
    fn launch(&self, inputs: [&Tensor; IN]) -> Result<Launch>;

    /// Writes the outputs.
    fn write(&self, launch: Launch, call: Call, outputs: &mut [CudaStorage]) -> Result<()> {
        call.run(launch, outputs)
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
    /// The kernel's, without the type.
    name: &'static str,
    device: &'a CudaDevice,
    /// The kernel's.
    dtype: DType,
    /// Contiguous, and of the types that the kernel has for `dtype`.
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
            .map(|(shape, _)| unwritten(self.device, shape.elem_count(), dtype))
            .collect()
    }

    fn run<'a>(
        &self,
        launch: Launch,
        outputs: impl IntoIterator<Item = &'a mut CudaStorage>,
    ) -> Result<()> {
        let inputs: Vec<_> = self.inputs.iter().map(Some).collect();
        let outputs = outputs.into_iter().map(|output| (output, None));
        launch.run(self.name, self.device, self.dtype, &inputs, outputs)
    }
}

/// There is no such kernel, and no launch.
impl CudaKernel<1, 1> for SumOfRows {
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

/// The elements of the first input.
fn len_of(inputs: &[&Tensor]) -> usize {
    inputs.first().map_or(0, |xs| xs.elem_count())
}

/// (len, curve, its parameters, tensors), each of `len` elements: xs and ys, or xs, dys and dxs.
impl<const IN: usize> CudaKernel<IN, 1> for Curve {
    fn launch(&self, inputs: [&Tensor; IN]) -> Result<Launch> {
        let (len, [curve, first, second]) = (len_of(&inputs), numbers(*self));
        let (numbers, counts) = ([len as u64, curve, first, second], vec![len; IN + 1]);
        Ok(Launch::new(ACTIVATION, each_element(len), numbers, counts))
    }
}

/// (len, width, xs, ys) or (len, width, xs, dys, dxs), where ys and dys have `len` elements in rows of `width`, xs and dxs twice as many.
impl<const IN: usize> CudaKernel<IN, 1> for Swiglu {
    fn launch(&self, inputs: [&Tensor; IN]) -> Result<Launch> {
        let len = len_of(&inputs) / 2;
        let (numbers, counts) = ([len as u64, self.width as u64], [2 * len, len, 2 * len]);
        let counts = &counts[..=IN];
        Ok(Launch::new(ACTIVATION, each_element(len), numbers, counts))
    }
}

/// (len, tensors), each of `len` elements: gate, up and ys, or gate, up, dys and both gradients.
impl<const IN: usize, const OUT: usize> CudaKernel<IN, OUT> for Gated {
    fn launch(&self, inputs: [&Tensor; IN]) -> Result<Launch> {
        let len = len_of(&inputs);
        let (numbers, counts) = ([len as u64], vec![len; IN + OUT]);
        Ok(Launch::new(GATED, each_element(len), numbers, counts))
    }
}

/// (len, seed, stream, threshold, scale, xs, ys), both tensors of `len` elements. A thread takes four.
impl CudaKernel<1, 1> for Mask {
    fn launch(&self, [xs]: [&Tensor; 1]) -> Result<Launch> {
        let (len, draw) = (xs.elem_count(), self.draw);
        let (threshold, scale) = (u64::from(self.threshold), self.scale.to_bits());
        let numbers = [len as u64, draw.seed, draw.call, threshold, scale];
        let grid = each_element(len.div_ceil(4));
        Ok(Launch::new(DROPOUT, grid, numbers, [len; 2]))
    }
}

/// For `len` elements, a block for each row of `width`, the number of rows, and the elements of all of them.
fn rows_of(len: usize, width: usize) -> Result<(LaunchConfig, usize, usize)> {
    let rows = len / width.max(1);
    Ok((each_row(rows, width)?, rows, rows * width))
}

/// (width, logarithm, xs, ys) or (width, logarithm, ys, dys, dxs), all tensors of as many rows of `width` elements as there are blocks.
impl<const IN: usize> CudaKernel<IN, 1> for Softmax {
    fn launch(&self, inputs: [&Tensor; IN]) -> Result<Launch> {
        let numbers = [self.width as u64, u64::from(self.logarithm)];
        let (grid, _, len) = rows_of(len_of(&inputs), self.width)?;
        Ok(Launch::new(SOFTMAX, grid, numbers, vec![len; IN + 1]))
    }
}

/// (width, none, targets, xs, losses, logs), where xs have a row of `width` elements for each block, the others one element; of a row the
/// kernel reads the target's element only if the target is below `width`.
impl CudaKernel<1, 2> for CrossEntropy {
    fn launch(&self, [xs]: [&Tensor; 1]) -> Result<Launch> {
        let (targets, none) = self.targets.numbers()?;
        let (grid, rows, len) = rows_of(xs.elem_count(), self.width)?;
        let (numbers, counts) = ([self.width as u64, none as u64], [rows, len, rows, rows]);
        let mut launch = Launch::new(CROSS_ENTROPY, grid, numbers, counts);
        launch.tensors.push(targets);
        Ok(launch)
    }
}

/// (width, none, targets, logs, factor, xs, dxs), where xs and dxs have a row of `width` elements for each block, targets and logs one
/// element; factor has one.
impl CudaKernel<3, 1> for CrossEntropy {
    fn launch(&self, [_, _, xs]: [&Tensor; 3]) -> Result<Launch> {
        let (targets, none) = self.targets.numbers()?;
        let (grid, rows, len) = rows_of(xs.elem_count(), self.width)?;
        let (numbers, counts) = ([self.width as u64, none as u64], [rows, rows, 1, len, len]);
        let mut launch = Launch::new(CROSS_ENTROPY, grid, numbers, counts);
        launch.tensors.push(targets);
        Ok(launch)
    }
}

/// (outer, cells, inner, of deviations, means, xs, dys, sums, products), where xs and dys have outer · cells · inner elements and the others
/// one for each cell, that is for each block.
impl CudaKernel<3, 2> for CellSums {
    fn launch(&self, _: [&Tensor; 3]) -> Result<Launch> {
        let sizes = [self.cells.outer, self.cells.cells, self.cells.inner];
        let [outer, count, inner] = sizes.map(|size| size as u64);
        let numbers = [outer, count, inner, u64::from(self.of_deviations)];
        let (cells, len) = (self.cells.cells, sizes.iter().product());
        let (grid, counts) = (
            each_row(cells, self.cells.len())?,
            [cells, len, len, cells, cells],
        );
        Ok(Launch::new(CELLS, grid, numbers, counts))
    }
}

/// (len, cells, inner, means, scales, shifts, xs, ys) or (len, cells, inner, means, scales, slopes, shifts, xs, dys, dxs), where xs, ys, dys
/// and dxs have `len` elements, the others one for each cell.
impl<const IN: usize> CudaKernel<IN, 1> for Cells {
    fn launch(&self, inputs: [&Tensor; IN]) -> Result<Launch> {
        let len = inputs.last().map_or(0, |xs| xs.elem_count());
        let mut counts = vec![self.cells; if IN == 4 { 3 } else { 4 }];
        counts.resize(IN + 1, len);
        let numbers = [len, self.cells, self.inner].map(|size| size as u64);
        Ok(Launch::new(CELLS, each_element(len), numbers, counts))
    }
}

/// (width, eps, center, xs, weight, bias, ys), where xs and ys have a row of `width` elements for each block, the others one.
impl CudaKernel<3, 1> for Rows {
    fn launch(&self, [xs, ..]: [&Tensor; 3]) -> Result<Launch> {
        let (width, center) = (self.width, u64::from(self.center));
        let (grid, _, len) = rows_of(xs.elem_count(), width)?;
        let numbers = [width as u64, self.eps.to_bits(), center];
        Ok(Launch::new(NORM, grid, numbers, [len, width, width, len]))
    }
}

/// (width, rows, rows of a block, eps, center, with sums, xs, weight, dys, dxs, sums), where xs, dys and dxs have `rows` rows of `width`
/// elements, the weight one and, with sums, these two rows for each block. Without sums the kernel does not touch them. `write` gives dxs and
/// the sums.
impl CudaKernel<3, 3> for RowsBackward {
    fn launch(&self, [xs, ..]: [&Tensor; 3]) -> Result<Launch> {
        let width = self.rows.width;
        let rows = xs.elem_count() / width.max(1);
        let of_block = self.rows_of_block(rows);
        let blocks = rows.div_ceil(of_block);
        let (eps, center) = (self.rows.eps.to_bits(), u64::from(self.rows.center));
        let with_sums = u64::from(self.with_sums);
        let [of_width, of_rows, of_block] = [width, rows, of_block].map(|size| size as u64);
        let numbers = [of_width, of_rows, of_block, eps, center, with_sums];
        let (len, sums) = (rows * width, with_sums as usize * blocks * 2 * width);
        let counts = [len, width, len, len, sums];
        Ok(Launch::new(NORM, each_row(blocks, width)?, numbers, counts))
    }

    fn write(&self, launch: Launch, call: Call, outputs: &mut [CudaStorage]) -> Result<()> {
        let [dxs, dweight, dbias] = outputs else {
            return Err(mismatch(call.name));
        };
        if !self.with_sums {
            return call.run(launch, [dxs, dweight]);
        }
        let (blocks, width) = (launch.grid.grid_dim.0 as usize, self.rows.width);
        let len = blocks * 2 * width;
        let mut sums = unwritten(call.device, len, sum_type(call.dtype))?;
        call.run(launch, [dxs, &mut sums])?;
        // (width, parts, sums, dw, db), where the sums have two rows of `width` elements for each part, and dw and db one. A block takes 32 of
        // the elements of both.
        let (grid, numbers) = (
            grid((2 * width).div_ceil(32) as u32, 256),
            [width as u64, blocks as u64],
        );
        let add = Launch::new(NORM, grid, numbers, [len, width, width]);
        let sums = tensor(Storage::Cuda(sums), Shape::from(len));
        let (name, inputs) = ("rows_sums", &[sums]);
        let call = Call {
            name,
            inputs,
            ..call
        };
        call.run(add, [dweight, dbias])
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

/// For each row of a table of this shape, the sum of the gradients of the tokens that took it, in their order. candle's kernel has a thread for
/// each column, which goes through all tokens.
pub fn sums_by_row(numbers: &Tensor, gradient: &Tensor, shape: &Shape) -> Result<Tensor> {
    const NAME: &str = "embedding_backward";
    let (rows, width) = shape.dims2()?;
    let (dtype, device) = (gradient.dtype(), gradient.device().as_cuda_device()?);
    // Of these numbers the largest takes no row; the largest of others is larger than any row's.
    let none = match numbers.dtype() {
        DType::U8 => u8::MAX.into(),
        _ => u64::MAX,
    };
    let numbers = numbers.to_dtype(DType::I64)?.contiguous()?;
    let (tokens, gradient) = (numbers.elem_count(), dense(NAME, gradient)?);
    if rows * width == 0 {
        return Tensor::zeros(shape, dtype, gradient.device());
    }
    let grid = LaunchConfig {
        block_dim: (256, 1, 1),
        ..each_row(rows, width)?
    };
    // (tokens, width, none, numbers, dys, dtable), where there is a number and a row of `width` elements for each token, and such a row for each
    // block.
    let of_kernel = [tokens as u64, width as u64, none];
    let counts = [tokens, tokens * width, rows * width];
    let launch = Launch::new(EMBEDDING, grid, of_kernel, counts);
    let sources = [Some(&numbers), Some(&gradient)];
    let targets = [(shape.clone(), dtype)];
    let [sums] = launch.make(NAME, device, dtype, &sources, None, targets)?;
    Ok(sums)
}
