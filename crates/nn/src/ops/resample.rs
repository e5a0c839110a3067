//! Images and sequences in another size, by the nearest element or interpolated, with gradients for any factor.

use candle_core::{Device, Result, Tensor, bail};

use crate::conv::widened;
use crate::graph::record_lean;
use crate::kernel::count_in_range;

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
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::ops::upsample_nearest1d;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[[1f32, 2., 3.]]], &Device::Cpu)?; // [batch, channels, length]
/// let y = upsample_nearest1d(&x, 6)?.flatten_all()?;
/// assert_eq!(y.to_vec1::<f32>()?, [1., 1., 2., 2., 3., 3.]);
/// # Ok(())
/// # }
/// ```
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
fn sizes(name: &'static str, x: &Tensor, [high, broad]: [usize; 2]) -> Result<[(usize, usize); 2]> {
    let (batch, channels, height, width) = x.dims4()?;
    for elements in [x.elem_count(), batch * channels * high * broad] {
        count_in_range(name, x.device(), elements)?;
    }
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

/// A linear map along one dimension.
#[derive(Clone)]
pub struct Line {
    from: usize,
    to: usize,
    /// The places in the result and in the source, and the weights, of all terms.
    terms: Vec<(i64, i64, f64)>,
}

impl Line {
    /// Each place of the result is the sum of these places of the source, times weights.
    pub fn new<I: IntoIterator<Item = (usize, f64)>>(
        from: usize,
        to: usize,
        sum: impl Fn(usize) -> I,
    ) -> Self {
        let terms = (0..to).flat_map(|at| {
            let term = move |(place, weight)| (at as i64, place as i64, weight);
            sum(at).into_iter().map(term)
        });
        let terms = terms.filter(|(_, _, weight)| *weight != 0.).collect();
        Self { from, to, terms }
    }

    /// Whether the result is the source.
    fn is_identity(&self) -> bool {
        let mut terms = (0..).zip(&self.terms);
        self.from == self.to
            && self.terms.len() == self.from
            && terms.all(|(index, term)| *term == (index, index, 1.))
    }

    /// Maps the second dimension of x, or with `transposed` back that of the result.
    fn apply(&self, x: Tensor, transposed: bool) -> Result<Tensor> {
        if self.is_identity() {
            return Ok(x);
        }
        let (device, count) = (x.device(), self.terms.len());
        let to = Tensor::from_iter(self.terms.iter().map(|term| term.0), device)?;
        let from = Tensor::from_iter(self.terms.iter().map(|term| term.1), device)?;
        let weights = self.terms.iter().map(|term| term.2);
        let weights = Tensor::from_iter(weights, &Device::Cpu)?.to_dtype(x.dtype())?;
        let weights = weights.reshape((1, count, 1))?.to_device(device)?;
        let (from, to, len) = match transposed {
            true => (to, from, self.from),
            false => (from, to, self.to),
        };
        let terms = x.index_select(&from, 1)?.broadcast_mul(&weights)?;
        let (outer, _, inner) = x.dims3()?;
        Tensor::zeros((outer, len, inner), x.dtype(), device)?.index_add(&to, &terms, 1)
    }
}

/// Puts `y`, the image of x under these maps, into the graph, which keeps the maps and neither tensor.
pub fn record_map(name: &'static str, x: &Tensor, y: Tensor, maps: [Line; 2]) -> Result<Tensor> {
    record_lean(name, [x], y, move |dy, _| {
        Ok([Some(resample(&dy, &maps, true)?)])
    })
}

/// The image of x (batch, channels, height, width) under the maps of height and width, or with `transposed` back. f16 and bf16 are summed in
/// f32.
pub fn resample(x: &Tensor, [rows, columns]: &[Line; 2], transposed: bool) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let (dtype, images) = (x.dtype(), batch * channels);
    let [high, broad] = [rows, columns].map(|line| if transposed { line.from } else { line.to });
    for elements in [x.elem_count(), images * height.max(high) * width.max(broad)] {
        count_in_range("resample", x.device(), elements)?;
    }
    if images * height * width * high * broad == 0 {
        return Tensor::zeros((batch, channels, high, broad), dtype, x.device());
    }
    let x = x.to_dtype(widened(dtype))?.contiguous()?;
    let y = columns.apply(x.reshape((images * height, width, 1))?, transposed)?;
    let y = rows.apply(y.reshape((images, height, broad))?, transposed)?;
    y.reshape((batch, channels, high, broad))?.to_dtype(dtype)
}
