//! What happens to a chunk of scores, by kernels on CUDA.

use candle_core::{DType, Result, Tensor};

use super::Chunk;
use crate::attention::rule::{NAME, wide};
use crate::kernel::cuda::{Argument, Launch, Module, each_row, module};
use crate::kernel::{InPlace, in_place, mismatch};

const ATTENTION: Module = module!("attention");

/// Turns scores into weights in place; the statistics.
pub fn weights(chunk: &Chunk, scores: &Tensor) -> Result<Tensor> {
    let sizes = chunk.rule.sizes;
    let rows = (sizes.batch, sizes.heads, chunk.queries, 2);
    let dtype = scores.dtype();
    let statistics = Tensor::zeros(rows, wide(dtype), scores.device())?;
    let (scores, sums) = ((scores, dtype, chunk.keys), (&statistics, wide(dtype), 2));
    run(chunk, "attention_sums", dtype, &[scores, sums])?;
    run(chunk, "attention_weights", dtype, &[sums, scores])?;
    Ok(statistics)
}

/// Turns gradients of weights into gradients of scores, and scores into weights, in place. Given also the statistics and
/// Σ weight · gradient of each row.
pub fn differentiate(
    chunk: &Chunk,
    [scores, gradients]: [&Tensor; 2],
    [statistics, sums]: [&Tensor; 2],
) -> Result<()> {
    let dtype = scores.dtype();
    let [scores, gradients] = [scores, gradients].map(|tensor| (tensor, dtype, chunk.keys));
    let (statistics, sums) = ((statistics, wide(dtype), 2), (sums, wide(dtype), 1));
    let operands = [statistics, sums, scores, gradients];
    run(chunk, "attention_gradients", dtype, &operands)?;
    run(chunk, "attention_weights", dtype, &[statistics, scores])
}

/// A contiguous tensor, its type, and how many numbers it has for each row of scores.
type Operand<'a> = (&'a Tensor, DType, usize);

/// Launches a kernel for scores of this type, with a block for each row. It writes the last operand and reads the others.
fn run(chunk: &Chunk, name: &'static str, dtype: DType, operands: &[Operand]) -> Result<()> {
    let rule = chunk.rule;
    let rows = rule.sizes.batch * rule.sizes.heads * chunk.queries;
    let mut counts = vec![0; 2];
    for (tensor, dtype, numbers) in operands {
        if tensor.dtype() != *dtype || tensor.elem_count() != rows * numbers {
            return Err(mismatch(NAME));
        }
        counts.push(rows * numbers);
    }
    let [inputs @ .., (into, ..)] = operands else {
        return Err(mismatch(NAME));
    };
    let mut sources = vec![rule.mask.as_ref(), rule.slopes.as_ref()];
    sources.extend(inputs.iter().map(|(input, ..)| Some(*input)));
    in_place(NAME, into, |storage, layout| {
        let InPlace::Cuda(storage) = storage else {
            return Err(mismatch(NAME));
        };
        let device = storage.device.clone();
        // (chunk, mask, slopes, inputs, into), of the sizes and types that were checked. The strides of a rule's mask stay within it, and there
        // is a slope for each head; both may be null.
        let grid = each_row(rows, chunk.keys)?;
        let mut launch = Launch::new(ATTENTION, grid, [], counts);
        let geometry = Box::new(geometry(chunk));
        launch.arguments.push(Argument::Elements(geometry));
        let targets = [(storage, Some(layout))];
        launch.run(name, &device, dtype, &sources, targets)
    })
}

/// The first argument of all kernels: the fields of `Chunk` in kernels/attention.cu, of 8 bytes each.
fn geometry(chunk: &Chunk) -> [u64; 17] {
    let (rule, sizes) = (chunk.rule, chunk.rule.sizes);
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
