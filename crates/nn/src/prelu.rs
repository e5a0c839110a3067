use candle_core::{Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

use crate::graph::{Backward, record};
use crate::kernel::sum_type;
use crate::norm::zeros;

/// A rectifier with a trained slope for negative numbers, one for all or one for each channel, as [`candle_nn::PReLU`].
///
/// It keeps its output.
#[derive(Clone, Debug)]
pub struct PReLU {
    weight: Tensor,
    is_scalar: bool,
}

impl PReLU {
    /// A layer with these slopes: one number if `is_scalar`, or one for each channel, which is dimension 1 of the input.
    pub fn new(weight: Tensor, is_scalar: bool) -> Self {
        Self { weight, is_scalar }
    }

    /// The slopes.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Whether all channels have the same slope.
    pub fn is_scalar(&self) -> bool {
        self.is_scalar
    }

    /// The shape in which the slopes are broadcast to an input.
    fn broadcast(&self, xs: &Tensor) -> Result<Vec<usize>> {
        let slopes = self.weight.elem_count();
        if self.is_scalar {
            return Ok(vec![1; xs.rank()]);
        }
        if xs.rank() < 2 || xs.shape() == self.weight.shape() {
            return Ok(self.weight.dims().to_vec());
        }
        let channels = xs.dim(1)?;
        if slopes != channels {
            bail!(
                "prelu: the input {:?} has {channels} channels, there are {slopes} slopes",
                xs.shape()
            );
        }
        let mut dims = vec![1; xs.rank()];
        if let Some(dim) = dims.get_mut(1) {
            *dim = channels;
        }
        Ok(dims)
    }
}

impl From<candle_nn::PReLU> for PReLU {
    fn from(layer: candle_nn::PReLU) -> Self {
        Self::new(layer.weight().clone(), layer.is_scalar())
    }
}

impl Module for PReLU {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let dims = self.broadcast(xs)?;
        let ys = {
            let (xs, weight) = (xs.detach(), self.weight.detach().reshape(dims.as_slice())?);
            let below = xs.minimum(0f32)?.broadcast_mul(&weight)?;
            xs.maximum(0f32)? + below
        }?;
        let backward = move |given: Backward<2>| {
            if given.output.elem_count() == 0 {
                return zeros(&given);
            }
            let [xs, weight] = &given.inputs;
            let dys = &given.gradient;
            let [needs_xs, needs_weight] = given.needs;
            let dxs = needs_xs.then(|| {
                let slopes = weight.reshape(dims.as_slice())?;
                // 1 above zero, 0 below, 1/2 at zero.
                let above = ((xs.sign()? + 1.)? * 0.5)?;
                let below = above.affine(-1., 1.)?.broadcast_mul(&slopes)?;
                dys * (above + below)?
            });
            let dweight = needs_weight.then(|| {
                let products = (xs.minimum(0f32)? * dys)?;
                let others = dims.iter().enumerate().filter(|(_, len)| **len == 1);
                let others = others.map(|(dim, _)| dim).collect::<Vec<_>>();
                let wide = products.to_dtype(sum_type(products.dtype()))?;
                let sums = wide.sum(others)?.reshape(weight.shape())?;
                sums.to_dtype(weight.dtype())
            });
            Ok([dxs.transpose()?, dweight.transpose()?])
        };
        record("prelu", [xs, &self.weight], ys, backward)
    }
}

/// Makes a [`PReLU`] with slopes of 0.25, named `weight`: one for each of `num_channels`, or one for all.
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn prelu(num_channels: Option<usize>, vs: VarBuilder) -> Result<PReLU> {
    let weight = vs.get_with_hints(num_channels.unwrap_or(1), "weight", Init::Const(0.25))?;
    Ok(PReLU::new(weight, num_channels.is_none()))
}
