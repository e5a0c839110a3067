use candle_core::{Result, Tensor, WithDType};
use candle_nn::attention::AttnMask;

use super::alibi;
use super::exact::attention;
use super::options::Attention;
use super::rule::wide;

/// Attention of (batch, positions, heads, width), as [`candle_nn::attention::flash_attn`], with a backward pass, on any device.
///
/// `k` and `v` may have fewer heads than `q`. The result has the shape (batch, heads, queries, width) and is not contiguous: it is a
/// transposed view of (batch, queries, heads, width). Its type is that of `q`, but f32 for a batch of one in f16 or bf16, as candle's
/// kernels return it; `T` chooses nothing.
///
/// `max_bias` adds ALiBi's bias. With [`AttnMask::Mask`], whose elements are those of (queries, keys) or can be broadcast to
/// (batch, heads, queries, keys), it multiplies the mask by each head's slope instead. `softcap` keeps scores between −`softcap` and
/// `softcap`. A value of 0 turns either off. All types, masks, `max_bias` and `softcap` go together, for every batch size, where candle
/// refuses some. With [`AttnMask::None`], `max_bias` counts for every batch size, where candle leaves it out for a batch of one.
///
/// The offset of [`AttnMask::Causal`] holds for every batch size, but a single query sees all keys. And where it is 0, with several
/// samples and more keys than queries, the last query sees the last key, as in candle.
///
/// It keeps what [`attention`] keeps, and ALiBi's bias: heads · queries · keys numbers. With `max_bias`, f16 and bf16 are computed in
/// f32, and copies of `q`, `k` and `v` in f32 are kept.
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
    let mask = match attn_mask {
        AttnMask::Causal { kv_offset: 0 } if q.dim(0)? > 1 => AttnMask::Causal {
            kv_offset: k.dim(1)?.saturating_sub(q.dim(1)?),
        },
        other => other,
    };
    run(q, k, v, softmax_scale, &mask, max_bias, softcap)
}

/// [`flash_attn`] with a mask or none, as [`candle_nn::attention::cpu_flash::standard::run_flash_attn_cpu`], for any batch size and
/// on any device. `max_bias` counts with a mask only.
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
    run(q, k, v, softmax_scale, &mask, max_bias, softcap)
}

/// [`flash_attn`] where query i sees keys 0 to i + `kv_offset`, as [`candle_nn::attention::cpu_flash::causal::run_causal_attn_cpu`],
/// for any batch size and on any device.
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
    run(q, k, v, softmax_scale, &mask, max_bias, softcap)
}

fn run(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    mask: &AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let (batch, queries, heads, _) = q.dims4()?;
    let (_, keys, _, _) = k.dims4()?;
    let slopes = max_bias.filter(|bias| *bias > 0.);
    let slopes = slopes.map(|bias| alibi::slopes(heads, bias));
    let dtype = match &slopes {
        // ALiBi's bias of distant keys is large: rounded to f16 or bf16 it would be another.
        Some(_) => wide(q.dtype()),
        None => q.dtype(),
    };
    let mut options = Attention::default().scale(f64::from(softmax_scale));
    if let Some(cap) = softcap.filter(|cap| *cap != 0.) {
        options = options.softcap(f64::from(cap));
    }
    let from_end = keys as i64 - queries as i64;
    let offset = match mask {
        AttnMask::Causal { .. } if queries == 1 => from_end,
        AttnMask::Causal { kv_offset } => {
            options = options.causal_from(*kv_offset);
            *kv_offset as i64
        }
        _ => from_end,
    };
    let bias = match (mask, &slopes) {
        (AttnMask::Mask(mask), None) => Some(matrix(mask, [queries, keys])?),
        (AttnMask::Mask(mask), Some(slopes)) => {
            let slopes = Tensor::new(slopes.as_slice(), mask.device())?;
            let slopes = slopes.reshape((heads, 1, 1))?.to_dtype(mask.dtype())?;
            Some(matrix(mask, [queries, keys])?.broadcast_mul(&slopes)?)
        }
        (_, Some(slopes)) => Some(alibi::bias(slopes, [queries, keys], offset, q.device())?),
        (_, None) => None,
    };
    if let Some(bias) = bias {
        options = options.mask(&bias.to_dtype(dtype)?);
    }
    let transposed = |tensor: &Tensor| tensor.to_dtype(dtype)?.transpose(1, 2);
    let output = attention(&transposed(q)?, &transposed(k)?, &transposed(v)?, &options)?;
    output.to_dtype(match batch {
        1 => wide(q.dtype()),
        _ => q.dtype(),
    })
}

/// candle's kernels read a mask of any shape as (queries, keys).
fn matrix(mask: &Tensor, [queries, keys]: [usize; 2]) -> Result<Tensor> {
    match mask.elem_count() == queries * keys {
        true => mask.reshape((queries, keys)),
        false => Ok(mask.clone()),
    }
}
