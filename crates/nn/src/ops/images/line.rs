//! Linear maps of images that treat height and width one after the other.

use candle_core::{Device, Result, Tensor};

use crate::conv::widened;
use crate::graph::record_lean;

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

/// The image of x (batch, channels, height, width) under the maps of height and width. f16 and bf16 are summed in f32.
pub fn map(x: &Tensor, [rows, columns]: &[Line; 2]) -> Result<Tensor> {
    resample(x, [rows, columns], false)
}

/// Puts `y`, the image of x under these maps, into the graph, which keeps the maps and neither tensor.
pub fn record_map(name: &'static str, x: &Tensor, y: Tensor, maps: [Line; 2]) -> Result<Tensor> {
    record_lean(name, [x], y, move |dy, _| {
        let [rows, columns] = &maps;
        Ok([Some(resample(&dy, [rows, columns], true)?)])
    })
}

fn resample(x: &Tensor, [rows, columns]: [&Line; 2], transposed: bool) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let (dtype, images) = (x.dtype(), batch * channels);
    let [high, broad] = [rows, columns].map(|line| if transposed { line.from } else { line.to });
    if images * height * width * high * broad == 0 {
        return Tensor::zeros((batch, channels, high, broad), dtype, x.device());
    }
    let x = x.to_dtype(widened(dtype))?.contiguous()?;
    let y = columns.apply(x.reshape((images * height, width, 1))?, transposed)?;
    let y = rows.apply(y.reshape((images, height, broad))?, transposed)?;
    y.reshape((batch, channels, high, broad))?.to_dtype(dtype)
}
