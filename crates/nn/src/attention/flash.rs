use candle_core::{Result, Tensor, WithDType, bail};
use candle_nn::attention::AttnMask;

use super::exact::attention;
use super::rule::{Attention, wide};

/// Attention of (batch, positions, heads, width), as [`candle_nn::attention::flash_attn`], with a backward pass, on any device.
///
/// `k` and `v` may have fewer heads than `q`. The result has the shape (batch, heads, queries, width) and is not contiguous: it is a
/// transposed view of (batch, queries, heads, width). Its type is that of `q` (candle returns f32 for a batch of one in f16 or bf16);
/// `T` chooses nothing.
///
/// `max_bias` adds ALiBi's bias. With [`AttnMask::Mask`], whose elements are those of (queries, keys) or can be broadcast to
/// (batch, heads, queries, keys), it multiplies the mask by each head's slope instead. `softcap` keeps scores between −`softcap` and
/// `softcap`. A value of 0 turns either off. All types, masks, `max_bias` and `softcap` go together, for every batch size, where candle
/// refuses some. With [`AttnMask::None`], `max_bias` counts for every batch size, where candle leaves it out for a batch of one.
///
/// With [`AttnMask::Causal`] query i sees keys 0 to i + `kv_offset`, for every batch size; a single query sees all keys. candle leaves
/// `kv_offset` out for several samples, and lets the last query see the last key, which is another rule where `kv_offset` is not keys −
/// queries.
///
/// It keeps what [`attention`] keeps. With a mask and `max_bias`, it also keeps their product for each head, and f16 and bf16 are computed
/// in f32, of which copies of `q`, `k` and `v` are kept.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::attention::{AttnMask, flash_attn};
///
/// let q = Tensor::randn(0f32, 1., (2, 10, 8, 16), &Device::Cpu)?; // [batch, positions, heads, width]
/// let k = Tensor::randn(0f32, 1., (2, 10, 4, 16), &Device::Cpu)?; // 4 key heads
/// let mask = AttnMask::Causal { kv_offset: 0 };
/// let y = flash_attn::<f32>(&q, &k, &k, 0.25, mask, None, None)?;
/// assert_eq!(y.dims(), [2, 8, 10, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`attention`].
pub fn flash_attn<T>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    attn_mask: AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor>
where
    T: WithDType + num_traits::Float,
{
    let (_, queries, heads, _) = q.dims4()?;
    let (_, keys, _, _) = k.dims4()?;
    let slopes = max_bias.filter(|bias| *bias > 0.);
    let slopes = slopes.map(|bias| Tensor::new(slopes_of(heads, bias), q.device()));
    let slopes = slopes.transpose()?;
    let mut dtype = q.dtype();
    let mut options = Attention::default().scale(f64::from(softmax_scale));
    if let Some(cap) = softcap.filter(|cap| *cap != 0.) {
        options = options.softcap(f64::from(cap));
    }
    options = match (&attn_mask, &slopes) {
        (AttnMask::Mask(mask), None) => {
            options.mask(&matrix(mask, [queries, keys])?.to_dtype(dtype)?)
        }
        (AttnMask::Mask(mask), Some(slopes)) => {
            // A large bias would be another one if it were rounded to f16 or bf16.
            dtype = wide(dtype);
            let slopes = slopes.reshape((heads, 1, 1))?.to_dtype(mask.dtype())?;
            let mask = matrix(mask, [queries, keys])?.broadcast_mul(&slopes)?;
            options.mask(&mask.to_dtype(dtype)?)
        }
        (AttnMask::Causal { kv_offset }, _) if queries > 1 => options.causal_from(*kv_offset),
        _ => options,
    };
    if let (AttnMask::None | AttnMask::Causal { .. }, Some(slopes)) = (&attn_mask, &slopes) {
        options = options.alibi(slopes);
    }
    let transposed = |tensor: &Tensor| tensor.to_dtype(dtype)?.transpose(1, 2);
    let output = attention(&transposed(q)?, &transposed(k)?, &transposed(v)?, &options)?;
    output.to_dtype(q.dtype())
}

/// [`flash_attn`] with a mask or none, as [`candle_nn::attention::cpu_flash::standard::run_flash_attn_cpu`], for any batch size and
/// on any device. `max_bias` counts with a mask only.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::attention::cpu_flash::standard::run_flash_attn_cpu;
///
/// let q = Tensor::randn(0f32, 1., (2, 10, 8, 16), &Device::Cpu)?; // [batch, positions, heads, width]
/// let mask = Tensor::zeros((10, 10), DType::F32, &Device::Cpu)?; // hides nothing
/// let y = run_flash_attn_cpu::<f32>(&q, &q, &q, Some(&mask), 0.25, None, None)?;
/// assert_eq!(y.dims(), [2, 8, 10, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`attention`].
pub fn run_flash_attn_cpu<T>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    softmax_scale: f32,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor>
where
    T: WithDType,
{
    let max_bias = max_bias.filter(|_| mask.is_some());
    let mask = mask.cloned().map_or(AttnMask::None, AttnMask::Mask);
    flash_attn::<f32>(q, k, v, softmax_scale, mask, max_bias, softcap)
}

/// [`flash_attn`] where query i sees keys 0 to i + `kv_offset`, as [`candle_nn::attention::cpu_flash::causal::run_causal_attn_cpu`],
/// for any batch size and on any device.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::attention::cpu_flash::causal::run_causal_attn_cpu;
///
/// // Two new tokens after 10 that are cached: [batch, positions, heads, width].
/// let q = Tensor::randn(0f32, 1., (1, 2, 8, 16), &Device::Cpu)?;
/// let k = Tensor::randn(0f32, 1., (1, 12, 8, 16), &Device::Cpu)?;
/// let y = run_causal_attn_cpu::<f32>(&q, &k, &k, 0.25, 10, None, None)?;
/// assert_eq!(y.dims(), [1, 8, 2, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`attention`].
pub fn run_causal_attn_cpu<T>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    kv_offset: usize,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor>
where
    T: WithDType + num_traits::Float,
{
    let mask = AttnMask::Causal { kv_offset };
    flash_attn::<f32>(q, k, v, softmax_scale, mask, max_bias, softcap)
}

/// Each head's slope for a maximal bias, as candle's kernels compute them.
fn slopes_of(heads: usize, max_bias: f32) -> Vec<f32> {
    let power = heads.max(1).next_power_of_two() as f32;
    let slope = |head: usize| 2f32.powf(-max_bias * (head + 1) as f32 / power);
    (0..heads).map(slope).collect()
}

/// candle's kernels read a mask of any shape as (queries, keys).
fn matrix(mask: &Tensor, [queries, keys]: [usize; 2]) -> Result<Tensor> {
    match mask.elem_count() == queries * keys {
        true => mask.reshape((queries, keys)),
        false => Ok(mask.clone()),
    }
}

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
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::attention::flash_attn_varlen_unfused;
///
/// // Texts of 3 and 5 tokens, one after the other: [all positions, heads, width].
/// let q = Tensor::randn(0f32, 1., (8, 4, 16), &Device::Cpu)?;
/// let lengths = Tensor::new(&[3u32, 5], &Device::Cpu)?;
/// let (longest, causal) = (5, true);
/// let y = flash_attn_varlen_unfused(
///     &q, &q, &q, None, &lengths, &lengths, longest, longest, 0.25, causal, None, None,
/// )?;
/// assert_eq!(y.dims(), [8, 4, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
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
