//! What happens to a chunk of scores, by kernels on CUDA.

use candle_core::{DType, Result, Tensor};

use super::chunk::Chunk;
use crate::attention::rule::{NAME, Rule, wide};
use crate::kernel::cuda::{Argument, Module, each_row, launch, module, source_of, target};
use crate::kernel::{InPlace, in_place, mismatch};

const ATTENTION: Module = module!("attention");

/// Turns scores into weights in place; the statistics.
pub fn weights(rule: &Rule, chunk: &Chunk, scores: &Tensor) -> Result<Tensor> {
    let rows = (rule.sizes.batch, rule.sizes.heads, chunk.queries, 2);
    let statistics = Tensor::zeros(rows, wide(scores.dtype()), scores.device())?;
    let run = Run::new(rule, chunk, scores.dtype());
    let (scores, sums) = (Operand::Scores(scores), Operand::Rows(&statistics, 2));
    run.kernel("attention_sums", &[scores], sums)?;
    run.kernel("attention_weights", &[sums], scores)?;
    Ok(statistics)
}

/// Turns gradients of weights into gradients of scores, and scores into weights, in place. Given also the statistics and
/// Σ weight · gradient of each row.
pub fn differentiate(
    rule: &Rule,
    chunk: &Chunk,
    [scores, gradients]: [&Tensor; 2],
    [statistics, sums]: [&Tensor; 2],
) -> Result<()> {
    let run = Run::new(rule, chunk, scores.dtype());
    let [scores, gradients] = [scores, gradients].map(Operand::Scores);
    let (statistics, sums) = (Operand::Rows(statistics, 2), Operand::Rows(sums, 1));
    let inputs = [statistics, sums, scores];
    run.kernel("attention_gradients", &inputs, gradients)?;
    run.kernel("attention_weights", &[statistics], scores)
}

/// A contiguous tensor that a kernel reads or writes.
#[derive(Clone, Copy)]
enum Operand<'a> {
    /// A number for each score of the chunk.
    Scores(&'a Tensor),
    /// So many numbers for each row of scores, in the type of sums.
    Rows(&'a Tensor, usize),
}

/// Kernels for a chunk of scores.
struct Run<'a> {
    rule: &'a Rule,
    chunk: Chunk,
    /// That of the scores.
    dtype: DType,
    rows: usize,
}

impl<'a> Run<'a> {
    fn new(rule: &'a Rule, chunk: &Chunk, dtype: DType) -> Self {
        let rows = rule.sizes.batch * rule.sizes.heads * chunk.queries;
        Self {
            rule,
            chunk: *chunk,
            dtype,
            rows,
        }
    }

    /// Launches a kernel with a block for each row.
    fn kernel(&self, name: &str, inputs: &[Operand], into: Operand) -> Result<()> {
        let inputs = inputs.iter().map(|input| self.checked(*input));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let biases = [self.rule.mask.as_ref(), self.rule.slopes.as_ref()];
        let tensors = biases.into_iter().chain(inputs.into_iter().map(Some));
        let storages: Vec<_> = tensors
            .map(|tensor| tensor.map(Tensor::storage_and_layout))
            .collect();
        in_place(NAME, self.checked(into)?, |storage, layout| {
            let InPlace::Cuda(storage) = storage else {
                return Err(mismatch(NAME));
            };
            let device = storage.device.clone();
            let geometry = geometry(self.rule, &self.chunk);
            let mut arguments = vec![Argument::Elements(Box::new(geometry))];
            for tensor in &storages {
                arguments.push(match tensor {
                    Some((storage, layout)) => source_of(storage, layout, NAME)?,
                    None => Argument::Bits(0),
                });
            }
            arguments.push(target(storage, Some(layout), NAME)?);
            let grid = each_row(self.rows, self.chunk.keys)?;
            // SAFETY: (chunk, mask, slopes, inputs, into) are the arguments of each kernel in kernels/attention.cu, of the sizes and types
            // that were checked. The strides of a rule's mask stay within it, and there is a slope for each head; both may be null.
            unsafe { launch(&device, ATTENTION, name, self.dtype, grid, &mut arguments) }
        })
    }

    fn checked<'b>(&self, operand: Operand<'b>) -> Result<&'b Tensor> {
        let (tensor, dtype, len) = match operand {
            Operand::Scores(tensor) => (tensor, self.dtype, self.rows * self.chunk.keys),
            Operand::Rows(tensor, numbers) => (tensor, wide(self.dtype), self.rows * numbers),
        };
        match tensor.dtype() == dtype && tensor.elem_count() == len {
            true => Ok(tensor),
            false => Err(mismatch(NAME)),
        }
    }
}

/// The first argument of all kernels: the fields of `Chunk` in kernels/attention.cu, of 8 bytes each.
fn geometry(rule: &Rule, chunk: &Chunk) -> [u64; 17] {
    let sizes = rule.sizes;
    let mut mask_strides = [0; 4];
    if let Some(mask) = &rule.mask {
        let of_dims = mask.dims().iter().zip(mask.stride());
        for (stride, (dim, of_dim)) in mask_strides.iter_mut().zip(of_dims) {
            *stride = if *dim == 1 { 0 } else { *of_dim as u64 };
        }
    }
    let [of_batch, of_head, of_query, of_key] = mask_strides;
    let dropout = rule.dropout.as_ref();
    [
        sizes.heads as u64,
        chunk.queries as u64,
        chunk.keys as u64,
        chunk.first as u64,
        sizes.queries as u64,
        sizes.keys as u64,
        rule.seen[0] as u64,
        rule.seen[1] as u64,
        rule.offset as u64,
        of_batch,
        of_head,
        of_query,
        of_key,
        rule.softcap.unwrap_or(0.).to_bits(),
        dropout.map_or(0, |dropout| dropout.factor.to_bits()),
        dropout.map_or(0, |dropout| dropout.seed),
        dropout.map_or(0, |dropout| dropout.threshold.into()),
    ]
}
