//! How each kernel that makes new tensors is launched.

use std::slice::from_mut;

use candle_core::cuda_backend::cudarc::driver::LaunchConfig;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape, Storage, Tensor};

use super::launch::{Launch, Module, each_element, each_row, module};
use super::unwritten;
use crate::bias::SumOfRows;
use crate::kernel::{Kernel, Plan, dense, mismatch, sum_type, tensor};
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
const SUMS: Module = module!("sums");

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

/// How many of `len` elements a part of their sum has, and the number of parts. It does not depend on the device, so neither do the sums. With
/// `least` elements in a part, its sum, which is written and read, is a small share of the bytes.
fn parts_of(len: usize, least: usize) -> (usize, usize) {
    const MOST_PARTS: usize = 512;
    let of_part = len.div_ceil(MOST_PARTS).max(least);
    (of_part, len.div_ceil(of_part).max(1))
}

/// A launch of kernels/columns.cuh: in x a block of 256 threads for each 128 columns, in y one for each of `count` sums.
fn each_column(width: usize, count: usize) -> Result<LaunchConfig> {
    let grid = each_row(width.div_ceil(128), width)?;
    Ok(LaunchConfig {
        grid_dim: (grid.grid_dim.0, count as u32, 1),
        block_dim: (256, 1, 1),
        ..grid
    })
}

impl Call<'_> {
    /// Runs a launch that writes `others` and then sums in parts of the wide type, a row of `width` for each part, and adds those up.
    fn run_in_parts(
        &self,
        (launch, parts, width): (Launch, usize, usize),
        others: &mut [CudaStorage],
        (sums, dtype): (&mut [CudaStorage], DType),
    ) -> Result<()> {
        let len = sums.len() * parts * width;
        let mut made = unwritten(self.device, len, sum_type(dtype))?;
        self.run(launch, others.iter_mut().chain([&mut made]))?;
        let made = tensor(Storage::Cuda(made), Shape::from(len));
        // (width, parts, xs, first sums, last sums), where xs have `parts` rows of `width` elements for each sum, which has one. There is a sum for
        // each block in y, one or two. One is the last; the kernel does not touch the first then.
        let (sources, counts) = match sums.len() {
            1 => (&[Some(&made), None][..], [len, 0, width]),
            2 => (&[Some(&made)][..], [len, width, width]),
            _ => return Err(mismatch(self.name)),
        };
        let (grid, numbers) = (
            each_column(width, sums.len())?,
            [width as u64, parts as u64],
        );
        let add = Launch::new(SUMS, grid, numbers, counts);
        let sums = sums.iter_mut().map(|sums| (sums, None));
        add.run("add_parts", self.device, dtype, sources, sums)
    }
}

/// (width, rows, rows of a part, xs, parts), where xs have `rows` rows of `width` elements and parts one for each block in y.
impl CudaKernel<1, 1> for SumOfRows {
    fn launch(&self, [rows]: [&Tensor; 1]) -> Result<Launch> {
        let (rows, width) = rows.dims2()?;
        let (of_part, parts) = parts_of(rows, 64);
        let numbers = [width, rows, of_part].map(|size| size as u64);
        let counts = [rows * width, parts * width];
        Ok(Launch::new(
            SUMS,
            each_column(width, parts)?,
            numbers,
            counts,
        ))
    }

    fn write(&self, launch: Launch, call: Call, outputs: &mut [CudaStorage]) -> Result<()> {
        let parts = launch.grid.grid_dim.1 as usize;
        let width = call.inputs.first().map_or(Ok(0), |rows| rows.dim(1))?;
        call.run_in_parts((launch, parts, width), &mut [], (outputs, call.dtype))
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

/// (len, seed, stream, threshold, scale, xs, ys), both tensors of `len` elements.
impl CudaKernel<1, 1> for Mask {
    fn launch(&self, [xs]: [&Tensor; 1]) -> Result<Launch> {
        let (len, draw) = (xs.elem_count(), self.draw);
        let (threshold, scale) = (u64::from(self.threshold), self.scale.to_bits());
        let numbers = [len as u64, draw.seed, draw.call, threshold, scale];
        Ok(Launch::new(DROPOUT, each_element(len), numbers, [len; 2]))
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

/// (len, cells, inner, len of a part, of deviations, means, xs, dys, parts), where xs and dys have outer · cells · inner elements, the means one for
/// each cell, and the parts two for each cell and block in y. `len` counts what threads take of a cell: four elements each if `inner` is a
/// multiple of 4, else one. A block in x has a cell, or 128 cells if `inner` is 1. `write` gives the sums and the products.
impl CudaKernel<3, 2> for CellSums {
    fn launch(&self, _: [&Tensor; 3]) -> Result<Launch> {
        let (inner, cells) = (self.cells.inner, self.cells.cells);
        let unit = if inner % 4 == 0 { 4 } else { 1 };
        let len = self.cells.len() / unit;
        let (of_part, parts) = parts_of(len, if inner == 1 { 64 } else { 2048 });
        let grid = match inner {
            1 => each_column(cells, parts)?,
            _ => {
                let grid = each_row(cells, of_part.min(len))?;
                let grid_dim = (grid.grid_dim.0, parts as u32, 1);
                LaunchConfig { grid_dim, ..grid }
            }
        };
        let of_deviations = u64::from(self.of_deviations);
        let [len, count, inner, of_part] = [len, cells, inner, of_part].map(|size| size as u64);
        let numbers = [len, count, inner, of_part, of_deviations];
        let (all, sums) = (self.cells.len() * cells, 2 * parts * cells);
        Ok(Launch::new(CELLS, grid, numbers, [cells, all, all, sums]))
    }

    fn write(&self, launch: Launch, call: Call, outputs: &mut [CudaStorage]) -> Result<()> {
        let parts = launch.grid.grid_dim.1 as usize;
        let (launch, dtype) = ((launch, parts, self.cells.cells), sum_type(call.dtype));
        call.run_in_parts(launch, &mut [], (outputs, dtype))
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

/// (width, eps, center, xs, residual, weight, bias, sums, ys), where xs, residual, sums and ys have a row of `width` elements for each block, the
/// others one.
impl CudaKernel<4, 2> for Rows {
    fn launch(&self, [xs, ..]: [&Tensor; 4]) -> Result<Launch> {
        let (width, center) = (self.width, u64::from(self.center));
        let (grid, _, len) = rows_of(xs.elem_count(), width)?;
        let numbers = [width as u64, self.eps.to_bits(), center];
        let counts = [len, len, width, width, len, len];
        Ok(Launch::new(NORM, grid, numbers, counts))
    }
}

/// (width, rows, rows of a block, eps, center, with sums, xs, weight, dys, dxs, parts), perhaps with another gradient after dys, where that, xs, dys
/// and dxs have `rows` rows of `width` elements, the weight one and, with sums, the parts two for each block. Without sums the kernel does not
/// touch them. `write` gives dxs and the sums.
impl<const IN: usize> CudaKernel<IN, 3> for RowsBackward {
    fn launch(&self, inputs: [&Tensor; IN]) -> Result<Launch> {
        let width = self.rows.width;
        let rows = len_of(&inputs) / width.max(1);
        let (of_block, blocks) = match self.with_sums {
            true => parts_of(rows, 16),
            false => (1, rows),
        };
        let (eps, center) = (self.rows.eps.to_bits(), u64::from(self.rows.center));
        let with_sums = u64::from(self.with_sums);
        let [of_width, of_rows, of_block] = [width, rows, of_block].map(|size| size as u64);
        let numbers = [of_width, of_rows, of_block, eps, center, with_sums];
        let (len, sums) = (rows * width, 2 * with_sums as usize * blocks * width);
        let mut counts = vec![len; IN + 2];
        (counts[1], counts[IN + 1]) = (width, sums);
        Ok(Launch::new(NORM, each_row(blocks, width)?, numbers, counts))
    }

    fn write(&self, launch: Launch, call: Call, outputs: &mut [CudaStorage]) -> Result<()> {
        if !self.with_sums {
            return call.run(launch, outputs.iter_mut().take(2));
        }
        let [dxs, sums @ ..] = outputs else {
            return Err(mismatch(call.name));
        };
        let (parts, dtype) = (launch.grid.grid_dim.0 as usize, call.dtype);
        call.run_in_parts(
            (launch, parts, self.rows.width),
            from_mut(dxs),
            (sums, dtype),
        )
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
