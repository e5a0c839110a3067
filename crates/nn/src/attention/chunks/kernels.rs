//! What happens to a chunk of scores, by kernels on CUDA.

use candle_core::{DType, Result, Shape, Tensor};

use super::Chunk;
use crate::attention::rule::{NAME, wide};
use crate::kernel::cuda::{Argument, Launch, Module, each_row, module};
use crate::kernel::mismatch;

const ATTENTION: Module = module!("attention");

/// The weights in a type, from scores in the type of sums, and the statistics.
pub fn weights(chunk: &Chunk, scores: &Tensor, dtype: DType) -> Result<[Tensor; 2]> {
    let sizes = chunk.rule.sizes;
    let statistics = Shape::from((sizes.batch, sizes.heads, chunk.queries, 2));
    let targets = [(statistics, wide(dtype)), (scores.shape().clone(), dtype)];
    let sources = [(scores, wide(dtype), chunk.keys)];
    let [statistics, weights] = run(chunk, "attention_weights", dtype, &sources, targets)?;
    Ok([weights, statistics])
}

/// The weights, and the gradients of scores, from scores and the gradients of weights in the type of sums. Given also the statistics, and the rows
/// of the output and of its gradient, whose type all have.
pub fn differentiate(
    chunk: &Chunk,
    [scores, gradients]: [&Tensor; 2],
    [statistics, output, gradient]: [&Tensor; 3],
) -> Result<[Tensor; 2]> {
    let (dtype, width) = (output.dtype(), chunk.rule.sizes.value_width);
    let sources = [
        (statistics, wide(dtype), 2),
        (output, dtype, width),
        (gradient, dtype, width),
        (scores, wide(dtype), chunk.keys),
        (gradients, wide(dtype), chunk.keys),
    ];
    let targets = [0; 2].map(|_| (scores.shape().clone(), dtype));
    run(chunk, "attention_gradients", dtype, &sources, targets)
}

/// A contiguous tensor, its type, and how many numbers it has for each row of scores.
type Operand<'a> = (&'a Tensor, DType, usize);

/// Launches a kernel for inputs of this type, with a block for each row.
fn run<const N: usize>(
    chunk: &Chunk,
    name: &'static str,
    dtype: DType,
    sources: &[Operand],
    targets: [(Shape, DType); N],
) -> Result<[Tensor; N]> {
    let rule = chunk.rule;
    let rows = rule.sizes.batch * rule.sizes.heads * chunk.queries;
    let mut counts = vec![0; 2];
    let mut given = vec![rule.mask.as_ref(), rule.slopes.as_ref()];
    for (source, dtype, numbers) in sources {
        if source.dtype() != *dtype || source.elem_count() != rows * numbers {
            return Err(mismatch(NAME));
        }
        counts.push(rows * numbers);
        given.push(Some(source));
    }
    counts.extend(targets.iter().map(|(shape, _)| shape.elem_count()));
    let (device, ..) = sources.first().ok_or_else(|| mismatch(NAME))?;
    let device = device.device().as_cuda_device()?;
    // (chunk, mask, slopes, sources, targets), of the sizes and types that were checked. The strides of a rule's mask stay within it, and there
    // is a slope for each head; both may be null.
    let mut launch = Launch::new(ATTENTION, each_row(rows, chunk.keys)?, [], counts);
    let geometry = Box::new(geometry(chunk));
    launch.arguments.push(Argument::Elements(geometry));
    launch.make(name, device, dtype, &given, targets)
}

/// The first argument of all kernels: the fields of `Chunk` in kernels/attention.cu, of 8 bytes each.
fn geometry(chunk: &Chunk) -> [u64; 19] {
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
        rule.first_head as u64,
        sizes.value_width as u64,
    ]
}
