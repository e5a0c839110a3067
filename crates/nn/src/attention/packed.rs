use candle_core::{Result, Tensor, bail};

use super::exact::attention;
use super::options::Attention;

/// Attention within sequences that are packed one after the other, as [`candle_nn::attention::flash_attn_varlen_unfused`], with a backward
/// pass, on any device.
///
/// - `q`: (all queries, heads, width); `k`, `v`: (all keys, key heads, width)
/// - `alibi_slopes`: (heads); they get no gradient
/// - `seqlens_q`, `seqlens_k`: (sequences), u32. On a GPU it waits to read them: [`Attention::lengths`] takes them from the host.
///
/// The result has the shape (all queries, heads, width). With `causal` the last query of a sequence sees its last key. A window lets
/// a query see `window_size_left` keys before and `window_size_right` after its own position; without the latter none after.
///
/// It keeps what [`attention`] keeps for each sequence, and a copy of the output.
///
/// # Errors
/// If `causal` is asked for a sequence with more queries than keys, if only `window_size_right` is given, if the lengths do not add
/// up to the sizes of `q`, `k` and `v`, and as [`attention`].
#[allow(clippy::too_many_arguments, reason = "it is candle's signature")]
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
    let lengths = |of: &Tensor| -> Result<Vec<usize>> {
        let lengths = of.to_vec1::<u32>()?.into_iter();
        Ok(lengths.map(|length| length as usize).collect())
    };
    let (queries, keys) = (lengths(seqlens_q)?, lengths(seqlens_k)?);
    let mut options = Attention::default().scale(f64::from(softmax_scale));
    options = options.lengths(&queries, &keys);
    if causal {
        let mut sequences = queries.iter().zip(&keys).enumerate();
        if let Some((at, (queries, keys))) = sequences.find(|(_, (t, s))| s < t) {
            bail!("causal attention with {keys} keys for {queries} queries in sequence {at}")
        }
        options = options.causal();
    }
    options = match (window_size_left, window_size_right) {
        (Some(left), right) => options.window(left, right.unwrap_or(0)),
        (None, None) => options,
        (None, Some(right)) => {
            bail!("window_size_right is {right}, but there is no window_size_left")
        }
    };
    if let Some(slopes) = alibi_slopes {
        options = options.alibi(slopes);
    }
    let heads = |packed: &Tensor| packed.unsqueeze(0)?.transpose(1, 2);
    let output = attention(&heads(q)?, &heads(k)?, &heads(v)?, &options)?;
    output.transpose(1, 2)?.squeeze(0)
}
