//! [`candle_nn::cpu_flash_attention`] with a backward pass: an older name of [`flash_attn`].

use candle_core::{Result, Tensor, WithDType};

use super::attention::{AttnMask, flash_attn};

/// [`flash_attn`] with a mask or none, as [`candle_nn::cpu_flash_attention::run_flash_attn_cpu`], with a backward pass, on any device.
///
/// It keeps what [`flash_attn`] keeps.
///
/// ```
/// # #![allow(deprecated)]
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::cpu_flash_attention::run_flash_attn_cpu;
///
/// let q = Tensor::randn(0f32, 1., (2, 10, 8, 16), &Device::Cpu)?; // [batch, positions, heads, width]
/// let mask = Tensor::zeros((10, 10), DType::F32, &Device::Cpu)?; // hides nothing
/// let y = run_flash_attn_cpu::<f32>(&q, &q, &q, Some(&mask), 0.25, None, None)?;
/// assert_eq!(y.dims(), [2, 8, 10, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
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
