use candle_core::{Result, Tensor, bail};

use super::line::{Line, record_map};

/// An image (batch, channels, height, width) in another size, larger or smaller, as [`Tensor::upsample_nearest2d`]: each element is
/// the nearest one.
///
/// candle 0.11.1 has a backward pass for whole factors only, the same for height and width, and loses the gradients of other
/// operations on the same tensor.
///
/// It keeps nothing. The sums of f16 and bf16 are computed in f32.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::upsample_nearest2d;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::randn(0f32, 1., (2, 3, 4, 5), &Device::Cpu)?;
/// assert_eq!(upsample_nearest2d(&x, 6, 10)?.dims(), [2, 3, 6, 10]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If x has other than four dimensions, or a size is zero.
pub fn upsample_nearest2d(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let sizes = sizes("upsample_nearest2d", x, [height, width])?;
    let y = x.detach().upsample_nearest2d(height, width)?;
    let maps = sizes.map(|(from, to)| {
        let scale = from as f64 / to as f64;
        Line::new(from, to, |at| {
            [((at as f64 * scale) as usize, 1.)]
                .map(|(place, weight)| (place.min(from - 1), weight))
        })
    });
    record_map("upsample_nearest2d", x, y, maps)
}

/// A sequence (batch, channels, length) in another length, as [`Tensor::upsample_nearest1d`], which does not run on CUDA: see
/// [`upsample_nearest2d`].
///
/// # Errors
/// If x has other than three dimensions, or a length is zero.
pub fn upsample_nearest1d(x: &Tensor, length: usize) -> Result<Tensor> {
    x.dims3()?;
    upsample_nearest2d(&x.unsqueeze(2)?, 1, length)?.squeeze(2)
}

/// An image (batch, channels, height, width) in another size, larger or smaller, as [`Tensor::upsample_bilinear2d`]: each element is
/// interpolated between the four around it. With `align_corners` those at the corners stay what they are.
///
/// candle 0.11.1 has no backward pass.
///
/// It keeps nothing. The sums of f16 and bf16 are computed in f32.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::upsample_bilinear2d;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::randn(0f32, 1., (2, 3, 4, 5), &Device::Cpu)?;
/// assert_eq!(upsample_bilinear2d(&x, 7, 3, false)?.dims(), [2, 3, 7, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If x has other than four dimensions, or a size is zero.
pub fn upsample_bilinear2d(
    x: &Tensor,
    height: usize,
    width: usize,
    align_corners: bool,
) -> Result<Tensor> {
    let sizes = sizes("upsample_bilinear2d", x, [height, width])?;
    if sizes.iter().all(|(from, to)| from == to) {
        return Ok(x.clone());
    }
    let y = x
        .detach()
        .upsample_bilinear2d(height, width, align_corners)?;
    let maps = sizes.map(|(from, to)| between(from, to, align_corners));
    record_map("upsample_bilinear2d", x, y, maps)
}

/// Height and width of x, and what they become.
fn sizes(name: &str, x: &Tensor, [high, broad]: [usize; 2]) -> Result<[(usize, usize); 2]> {
    let (_, _, height, width) = x.dims4()?;
    if height * width * high * broad == 0 {
        bail!(
            "{name}: {:?} to {high} x {broad}: no size may be zero",
            x.shape()
        )
    }
    Ok([(height, high), (width, broad)])
}

/// Linear interpolation as candle does it.
fn between(from: usize, to: usize, align_corners: bool) -> Line {
    // How far two neighbours of the result are apart in the source.
    let step = match align_corners {
        true => (from - 1) as f64 / (to - 1).max(1) as f64,
        false => from as f64 / to as f64,
    };
    Line::new(from, to, |at| {
        let place = match align_corners {
            true => step * at as f64,
            false => step * (at as f64 + 0.5) - 0.5,
        };
        let place = place.max(0.);
        let first = (place as usize).min(from - 1);
        let weight = (place - first as f64).clamp(0., 1.);
        [(first, 1. - weight), ((first + 1).min(from - 1), weight)]
    })
}
