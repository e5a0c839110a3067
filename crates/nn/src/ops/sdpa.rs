use candle_core::{Result, Tensor};

use crate::attention::{Attention, attention};

/// Scaled dot product attention, as [`candle_nn::ops::sdpa`], with a backward pass, on any device.
///
/// - `q`: (batch, heads, queries, width)
/// - `k`: (batch, key heads, keys, width)
/// - `v`: (batch, key heads, keys, value width)
/// - `mask`: added to the scores; its shape can be broadcast to (batch, heads, queries, keys)
/// - `do_causal`: the last query sees the last key, each query one key less than the next
/// - `softcapping`: scores are kept between −`softcapping` and `softcapping`; 1 turns it off
///
/// The result is not contiguous: as that of [`attention`], it is a transposed view of (batch, queries, heads, value width).
///
/// It keeps what [`attention`] keeps.
///
/// # Errors
/// As [`attention`].
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    let mut options = Attention::default().scale(f64::from(scale));
    if do_causal {
        options = options.causal();
    }
    if let Some(mask) = mask {
        options = options.mask(mask);
    }
    if softcapping != 1. {
        options = options.softcap(f64::from(softcapping));
    }
    attention(q, k, v, &options)
}
