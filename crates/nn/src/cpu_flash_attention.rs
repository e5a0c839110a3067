//! [`candle_nn::cpu_flash_attention`] with a backward pass: an older name of [`flash_attn`].

use candle_core::{Result, Tensor, WithDType};

use super::attention::{AttnMask, flash_attn};

/// [`flash_attn`] with a mask or none, as [`candle_nn::cpu_flash_attention::run_flash_attn_cpu`], with a backward pass, on any device.
///
/// It keeps what [`flash_attn`] keeps.
///
/// # Errors
/// As [`flash_attn`].
#[deprecated(note = "use `nn::attention::{flash_attn, AttnMask}`")]
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
    T: WithDType + num_traits::Float + 'static,
{
    let mask = mask.cloned().map_or(AttnMask::None, AttnMask::Mask);
    flash_attn::<T>(q, k, v, softmax_scale, mask, max_bias, softcap)
}
