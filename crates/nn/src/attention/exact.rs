use candle_core::{DType, Error, Result, Tensor, bail};

use super::chunks;
use super::rule::{Attention, NAME, Rule, wide};
use super::tiles;
use crate::graph::{Backward, Gradients, record};
use crate::kernel::in_range;

/// Exact attention: softmax(q · kᵀ · scale) · v, without a matrix of scores that stays. After FlashAttention-2 (Dao, 2023).
///
/// - `q`: (batch, heads, queries, width)
/// - `k`: (batch, key heads, keys, width)
/// - `v`: (batch, key heads, keys, value width)
///
/// `heads` is a multiple of `key heads`: consecutive query heads share a key head, which is not repeated in memory. All have the
/// same type: f32, f64, f16 or bf16. Any strides: the graph gets no copies of views such as `.transpose(1, 2)`.
///
/// The result has the shape (batch, heads, queries, value width) and lies in memory as (batch, queries, heads, value width), so
/// `.transpose(1, 2)?.reshape((batch, queries, heads * value_width))` copies nothing.
///
/// A query that sees no key, because of the mask, a window or its position, gets zeros, and so do its gradients.
///
/// It keeps the inputs, the output, and two numbers for each query and head, in f32 (f64 for f64): the largest score and 1 / the sum
/// of exponentials. Scores are computed for some queries at a time, forward and again backward: on the CPU in tiles of half a MiB or
/// 16 queries for each thread, else in [chunks](Attention::chunk) of at most 256 MiB, or of a query of one key head. Scores and statistics are in f32, and
/// so is everything on the CPU. With a mask
/// that leads to a Var the backward pass on the CPU is a composition of candle's operations on chunks of 4 MiB.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Attention, attention};
///
/// let q = Tensor::zeros((1, 2, 3, 4), DType::F32, &Device::Cpu)?; // [batch, heads, queries, width]
/// let k = Tensor::zeros((1, 1, 2, 4), DType::F32, &Device::Cpu)?; // both heads share it
/// let v = Tensor::new(&[1f32, 3.], &Device::Cpu)?.reshape((1, 1, 2, 1))?; // of two keys
/// let y = attention(&q, &k, &v, &Attention::default())?;
/// assert_eq!(y.dims(), [1, 2, 3, 1]);
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [2.; 6]); // equal scores: the mean
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// If shapes, types or devices do not fit together, for types other than those above, and for options out of range.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &Attention) -> Result<Tensor> {
    if let Some(lengths) = &options.lengths {
        return within_sequences([q, k, v], lengths, options);
    }
    in_range(NAME, [q, k, v].into_iter().chain(&options.mask))?;
    let rule = Rule::new(q, k, v, options)?;
    match q.dtype() {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => {}
        other => return Err(Error::UnsupportedDTypeForOp(other, NAME).bt()),
    }
    let (output, statistics) = forward(&rule, &q.detach(), &k.detach(), &v.detach())?;
    // A constant mask is part of the rule; any tensor outside the graph stands in for it.
    let learned = options.mask.as_ref().filter(|mask| mask.track_op());
    let mask = learned.cloned().unwrap_or_else(|| q.detach());
    let output = record(NAME, [q, k, v, &mask], output, move |given| {
        backward(&rule, &statistics, &given)
    });
    output?.transpose(1, 2)
}

/// [`attention`] within each of the sequences that follow each other in `q`, `k` and `v`.
fn within_sequences(
    [q, k, v]: [&Tensor; 3],
    [queries, keys]: &[Vec<usize>; 2],
    options: &Attention,
) -> Result<Tensor> {
    let total = |lengths: &[usize]| {
        let lengths = lengths.iter();
        lengths.fold(0, |sum: usize, length| sum.saturating_add(*length))
    };
    let (all_queries, all_keys) = (q.dim(2)?, k.dim(2)?);
    let totals = [total(queries), total(keys), total(keys)];
    if queries.len() != keys.len() || totals != [all_queries, all_keys, v.dim(2)?] {
        bail!(
            "attention: lengths {queries:?} and {keys:?} do not add up to {all_queries} queries and {all_keys} keys"
        )
    }
    if options.mask.is_some() {
        bail!("attention: sequences of given lengths take no mask, but a window and slopes")
    }
    let options = Attention {
        lengths: None,
        ..options.clone()
    };
    if queries.is_empty() {
        return attention(q, k, v, &options);
    }
    let mut outputs = Vec::with_capacity(queries.len());
    let (mut query, mut key) = (0, 0);
    for (&queries, &keys) in queries.iter().zip(keys) {
        let q = q.narrow(2, query, queries)?;
        let (k, v) = (k.narrow(2, key, keys)?, v.narrow(2, key, keys)?);
        outputs.push(attention(&q, &k, &v, &options)?.transpose(1, 2)?);
        (query, key) = (query + queries, key + keys);
    }
    Tensor::cat(&outputs, 1)?.transpose(1, 2)
}

/// The output as (batch, queries, heads, value width), and the statistics as (batch, heads, queries, 2): for each query the largest
/// of its scores x and 1 / Σ exp(x − largest). Not one number, largest + ln Σ: where the largest is far from 0, rounding takes ln Σ away.
fn forward(rule: &Rule, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
    let sizes = rule.sizes;
    let (dtype, wide) = (q.dtype(), wide(q.dtype()));
    let outputs = (sizes.batch, sizes.queries, sizes.heads, sizes.value_width);
    if is_empty(rule) {
        let statistics = (sizes.batch, sizes.heads, sizes.queries, 2);
        let statistics = Tensor::zeros(statistics, wide, q.device())?;
        return Ok((Tensor::zeros(outputs, dtype, q.device())?, statistics));
    }
    if !q.device().is_cpu() {
        let most = chunks::most_scores(rule, dtype, q.device());
        return chunks::forward(rule, [q, k, v], most);
    }
    let rule = rule.in_type(wide)?;
    let [q, k, v] = [q.to_dtype(wide)?, k.to_dtype(wide)?, v.to_dtype(wide)?];
    let (output, statistics) = match wide {
        DType::F64 => tiles::forward::<f64>(&rule, [&q, &k, &v])?,
        _ => tiles::forward::<f32>(&rule, [&q, &k, &v])?,
    };
    Ok((output.to_dtype(dtype)?, statistics))
}

/// The gradients of q, k, v and, if asked for, of the mask.
fn backward(rule: &Rule, statistics: &Tensor, given: &Backward<4>) -> Result<Gradients<4>> {
    if is_empty(rule) {
        return given.zeros();
    }
    let ([q, k, v, mask], [.., of_mask]) = (&given.inputs, given.needs);
    let (output, gradient) = (
        given.output.transpose(1, 2)?,
        given.gradient.transpose(1, 2)?,
    );
    let all = [q, k, v, &output, &gradient];
    let (dtype, wide) = (q.dtype(), wide(q.dtype()));
    let most = chunks::most_scores(rule, dtype, q.device());
    let gradients = if q.device().is_cpu() {
        let rule = rule.in_type(wide)?;
        let [q, k, v, output, gradient] = all.map(|tensor| tensor.to_dtype(wide));
        let all = [&q?, &k?, &v?, &output?, &gradient?];
        match wide {
            _ if of_mask => chunks::backward(&rule, all, statistics, true, most)?,
            DType::F64 => tiles::backward::<f64>(&rule, all, statistics)?,
            _ => tiles::backward::<f32>(&rule, all, statistics)?,
        }
    } else {
        chunks::backward(rule, all, statistics, of_mask, most)?
    };
    let gradients = gradients.map(|found| found.map(|found| found.to_dtype(dtype)).transpose());
    let [dq, dk, dv, dmask] = gradients;
    let dmask = dmask?.map(|dmask| dmask.reshape(mask.shape()));
    Ok([dq?, dk?, dv?, dmask.transpose()?])
}

/// Whether there is nothing to add up.
fn is_empty(rule: &Rule) -> bool {
    let sizes = rule.sizes;
    rule.sizes.scores().contains(&0) || sizes.value_width == 0
}
