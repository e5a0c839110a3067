use candle_core::{DType, Device, Result, Tensor, bail};

use super::alibi;
use super::exact::attention;
use super::options::Attention;

/// Attention within sequences that are packed one after the other, as [`candle_nn::attention::flash_attn_varlen_unfused`], with a backward
/// pass, on any device.
///
/// - `q`: (all queries, heads, width); `k`, `v`: (all keys, key heads, width)
/// - `alibi_slopes`: (heads), f32; they get no gradient
/// - `seqlens_q`, `seqlens_k`: (sequences), u32
///
/// The result has the shape (all queries, heads, width). With `causal` the last query of a sequence sees its last key. A window lets
/// a query see `window_size_left` keys before and `window_size_right` after its own position; without the latter none after.
///
/// It keeps what [`attention`](super::attention) keeps for each sequence, a copy of the output, and windows and ALiBi's bias, which
/// hold heads · queries · keys numbers for each sequence.
///
/// # Errors
/// If `causal` is asked for a sequence with more queries than keys, if only `window_size_right` is given, if the lengths do not add
/// up to the sizes of `q`, `k` and `v`, and as [`attention`](super::attention).
#[allow(clippy::too_many_arguments)] // candle's signature
pub fn flash_attn_varlen_unfused(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    _max_seqlen_q: usize,
    _max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let (total_q, heads, _) = q.dims3()?;
    let (total_k, _, _) = k.dims3()?;
    let (_, _, value_width) = v.dims3()?;
    let (queries, keys) = (seqlens_q.to_vec1::<u32>()?, seqlens_k.to_vec1::<u32>()?);
    let total = |lengths: &[u32]| lengths.iter().map(|length| *length as usize).sum::<usize>();
    if queries.len() != keys.len() || total(&queries) != total_q || total(&keys) != total_k {
        bail!(
            "lengths {queries:?} and {keys:?} do not add up to {total_q} queries and {total_k} keys"
        )
    }
    let slopes = alibi_slopes.map(Tensor::to_vec1::<f32>).transpose()?;
    if let Some(slopes) = slopes.as_ref().filter(|slopes| slopes.len() != heads) {
        bail!("{} ALiBi slopes for {heads} heads", slopes.len())
    }
    let window = match (window_size_left, window_size_right) {
        (Some(left), right) => Some([left, right.unwrap_or(0)]),
        (None, None) => None,
        (None, Some(right)) => {
            bail!("window_size_right is {right}, but there is no window_size_left")
        }
    };
    let mut outputs = Vec::with_capacity(queries.len());
    let (mut first_query, mut first_key) = (0, 0);
    for (sequence, lengths) in queries.into_iter().zip(keys).enumerate() {
        let [queries, keys] = [lengths.0 as usize, lengths.1 as usize];
        if causal && keys < queries {
            bail!("causal attention with {keys} keys for {queries} queries in sequence {sequence}")
        }
        let part = |packed: &Tensor, first: usize, count: usize| {
            packed
                .narrow(0, first, count)?
                .unsqueeze(0)?
                .transpose(1, 2)
        };
        let mut options = Attention::default().scale(f64::from(softmax_scale));
        if causal {
            options = options.causal();
        }
        let mut masks = Vec::new();
        if let Some(window) = window {
            masks.push(outside(window, [queries, keys], q.device())?);
        }
        if let Some(slopes) = &slopes {
            let offset = keys as i64 - queries as i64;
            masks.push(alibi::bias(slopes, [queries, keys], offset, q.device())?);
        }
        if let Some(mask) = masks
            .into_iter()
            .map(Ok)
            .reduce(|a, b| a?.broadcast_add(&b?))
        {
            options = options.mask(&mask?.to_dtype(q.dtype())?);
        }
        let k = part(k, first_key, keys)?;
        let v = part(v, first_key, keys)?;
        let output = attention(&part(q, first_query, queries)?, &k, &v, &options)?;
        outputs.push(output.transpose(1, 2)?.squeeze(0)?);
        (first_query, first_key) = (first_query + queries, first_key + keys);
    }
    match outputs.is_empty() {
        true => Tensor::zeros((0, heads, value_width), q.dtype(), q.device()),
        false => Tensor::cat(&outputs, 0),
    }
}

/// −∞ outside of the window around each query, else 0.
fn outside(window: [usize; 2], [queries, keys]: [usize; 2], device: &Device) -> Result<Tensor> {
    let offset = keys as i64 - queries as i64;
    let [left, right] = window.map(|size| i64::try_from(size).unwrap_or(i64::MAX));
    let values = (0..queries as i64).flat_map(|query| {
        let at = query + offset;
        let (first, last) = (at.saturating_sub(left), at.saturating_add(right));
        (0..keys as i64).map(move |key| match (first..=last).contains(&key) {
            true => 0f32,
            false => f32::NEG_INFINITY,
        })
    });
    Tensor::from_vec(values.collect(), (1, queries, keys), device)?.to_dtype(DType::F32)
}
