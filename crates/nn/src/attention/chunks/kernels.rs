//! What happens to a chunk of scores, by kernels on CUDA.

use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Layout, Result, Shape, Tensor};

use super::Chunk;
use crate::attention::rule::{NAME, wide};
use crate::kernel::cuda::{Argument, Launch, Module, each_row, module};
use crate::kernel::{InPlace, in_place, mismatch};

const ATTENTION: Module = module!("attention");

/// The weights in a type, from scores in the type of sums. The statistics are written into those of all samples, heads and queries.
pub fn weights(
    chunk: &Chunk,
    scores: &Tensor,
    statistics: &Tensor,
    dtype: DType,
) -> Result<Tensor> {
    let [of_scores, ..] = counts(chunk);
    let sources = [(scores, wide(dtype), of_scores)];
    let [weights] = in_place(NAME, statistics, |storage, layout| match storage {
        InPlace::Cuda(storage) if storage.dtype() == wide(dtype) => {
            let changed = Some((storage, layout));
            run(chunk, "attention_weights", dtype, &sources, changed)
        }
        _ => Err(mismatch(NAME)),
    })?;
    Ok(weights)
}

/// The weights, and the gradients of scores, from scores and the gradients of weights in the type of sums. Given also the statistics, the output
/// and its gradient of all samples, heads and queries, which lie in memory as (batch, queries, heads, value width).
pub fn differentiate(
    chunk: &Chunk,
    [scores, gradients]: [Tensor; 2],
    [statistics, output, gradient]: [&Tensor; 3],
) -> Result<[Tensor; 2]> {
    let ([of_scores, of_statistics, of_values], dtype) = (counts(chunk), output.dtype());
    let (output, gradient) = (output.transpose(1, 2)?, gradient.transpose(1, 2)?);
    let sources = [
        (statistics, wide(dtype), of_statistics),
        (&output, dtype, of_values),
        (&gradient, dtype, of_values),
        (&scores, wide(dtype), of_scores),
        (&gradients, wide(dtype), of_scores),
    ];
    run(chunk, "attention_gradients", dtype, &sources, None)
}

/// How many elements the kernels read or write: a chunk's scores, and the statistics and values of all samples up to the last of which the
/// chunk has any.
fn counts(chunk: &Chunk) -> [usize; 3] {
    let (rule, sizes) = (chunk.rule, chunk.rule.sizes);
    let heads = sizes.batch * sizes.heads;
    let all_heads = (rule.first_head + heads).next_multiple_of(rule.all_heads);
    let rows = all_heads * sizes.queries;
    let scores = heads * chunk.queries * chunk.keys;
    [scores, 2 * rows, rows * sizes.value_width]
}

/// A contiguous tensor, its type, and how many elements a kernel reads.
type Operand<'a> = (&'a Tensor, DType, usize);

/// Launches a kernel for inputs of this type, with a block for each row. It makes tensors of (batch, heads, queries, keys), and changes
/// statistics.
fn run<const N: usize>(
    chunk: &Chunk,
    name: &'static str,
    dtype: DType,
    sources: &[Operand],
    changed: Option<(&mut CudaStorage, &Layout)>,
) -> Result<[Tensor; N]> {
    let (rule, sizes) = (chunk.rule, chunk.rule.sizes);
    let [of_scores, of_statistics, _] = counts(chunk);
    let mut counts = vec![0; 2];
    let mut given = vec![rule.mask.as_ref(), rule.slopes.as_ref()];
    for (source, dtype, count) in sources {
        if source.dtype() != *dtype {
            return Err(mismatch(NAME));
        }
        counts.push(*count);
        given.push(Some(source));
    }
    counts.extend(changed.iter().map(|_| of_statistics));
    counts.extend([of_scores; N]);
    let (device, ..) = sources.first().ok_or_else(|| mismatch(NAME))?;
    let device = device.device().as_cuda_device()?;
    let rows = sizes.batch * sizes.heads * chunk.queries;
    // (chunk, mask, slopes, sources, statistics, targets), of the types that were checked. A block takes its row of scores, and of statistics and
    // values that of its query and of the head `first_head` + batch · heads + head among those of all samples: none is after the last sample
    // of which the chunk has any. The strides of a rule's mask stay within it, and there is a slope for each head; both may be null.
    let mut launch = Launch::new(ATTENTION, each_row(rows, chunk.keys)?, [], counts);
    let geometry = Box::new(geometry(chunk));
    launch.arguments.push(Argument::Elements(geometry));
    let shape = (sizes.batch, sizes.heads, chunk.queries, chunk.keys);
    let targets = [0; N].map(|_| (Shape::from(shape), dtype));
    launch.make(name, device, dtype, &given, changed, targets)
}

/// The first argument of all kernels: the fields of `Chunk` in kernels/attention.cu, of 8 bytes each.
fn geometry(chunk: &Chunk) -> [u64; 20] {
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
        rule.all_heads as u64,
    ]
}
