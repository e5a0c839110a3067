//! Group normalization, as [`mod@candle_nn::group_norm`], with a backward pass that keeps little memory.

use candle_core::{Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

use super::graph::{Backward, Gradients, record};
use super::norm::cells::Cells;
use super::norm::groups::{Groups, Statistics};
use super::norm::{check_type, statistics_type, zeros};

/// Normalization of groups of channels ([Wu and He, 2018](https://arxiv.org/abs/1803.08494)), as [`candle_nn::GroupNorm`].
///
/// The input has the shape (batch, channels, …) with at least three dimensions and any strides. The statistics of f16 and bf16 are
/// computed in f32. It keeps its output, and three numbers for each group of each sample.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
    num_channels: usize,
    num_groups: usize,
}

impl GroupNorm {
    /// `weight` and `bias` have `num_channels` elements; `eps` is added to the variance.
    ///
    /// # Errors
    /// If `num_groups` does not divide `num_channels`.
    pub fn new(
        weight: Tensor,
        bias: Tensor,
        num_channels: usize,
        num_groups: usize,
        eps: f64,
    ) -> Result<Self> {
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            bail!("GroupNorm: num_groups ({num_groups}) must divide num_channels ({num_channels})")
        }
        Ok(Self {
            weight,
            bias,
            eps,
            num_channels,
            num_groups,
        })
    }

    fn groups(&self, xs: &Tensor) -> Result<Groups> {
        let [batch, channels, inner @ ..] = xs.dims() else {
            bail!(
                "GroupNorm: the input needs at least 3 dimensions, got {:?}",
                xs.shape()
            )
        };
        if inner.is_empty() {
            bail!(
                "GroupNorm: the input needs at least 3 dimensions, got {:?}",
                xs.shape()
            )
        }
        if *channels != self.num_channels {
            bail!(
                "GroupNorm: expected {} channels, got {:?}",
                self.num_channels,
                xs.shape()
            )
        }
        Ok(Groups {
            cells: Cells {
                outer: 1,
                cells: batch * channels,
                inner: inner.iter().product(),
            },
            members: self.num_channels / self.num_groups,
        })
    }
}

impl Module for GroupNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let groups = self.groups(xs)?;
        check_type("group-norm", xs, &self.weight)?;
        check_type("group-norm", xs, &self.bias)?;
        let inputs = [xs, &self.weight, &self.bias];
        if xs.elem_count() == 0 {
            return record("group-norm", inputs, xs.zeros_like()?, |given| {
                zeros(&given)
            });
        }
        let dense = xs.detach().contiguous()?;
        let statistics = groups.statistics(&dense, self.eps, true)?;
        let weight = of_cells(&self.weight, self.num_channels, groups)?;
        let bias = of_cells(&self.bias, self.num_channels, groups)?;
        let ys = groups.normalize(&dense, &statistics, &weight, &bias)?;
        let backward = move |given| backward(groups, &statistics, given);
        record("group-norm", inputs, ys, backward)
    }
}

/// A parameter's value for each channel of each group of each sample.
fn of_cells(parameter: &Tensor, channels: usize, groups: Groups) -> Result<Tensor> {
    let wide = parameter
        .detach()
        .to_dtype(statistics_type(parameter.dtype()))?;
    let batch = groups.cells.cells / channels.max(1);
    let of_samples = wide
        .reshape((1, channels))?
        .broadcast_as((batch, channels))?;
    of_samples.reshape(((), groups.members))
}

fn backward(groups: Groups, statistics: &Statistics, given: Backward<3>) -> Result<Gradients<3>> {
    let [xs, weight, bias] = &given.inputs;
    let of_cells = of_cells(weight, weight.elem_count(), groups)?;
    let gradients = groups.gradients([xs, &given.gradient], statistics, &of_cells)?;
    let of_parameter = |sums: Tensor, parameter: &Tensor| {
        let of_samples = sums.reshape(((), parameter.elem_count()))?;
        let sum = of_samples.sum(0)?.to_dtype(parameter.dtype())?;
        sum.reshape(parameter.shape())
    };
    let [input, of_weight, of_bias] = given.needs;
    Ok([
        input.then_some(gradients.input),
        of_weight
            .then(|| of_parameter(gradients.weight, weight))
            .transpose()?,
        of_bias
            .then(|| of_parameter(gradients.bias, bias))
            .transpose()?,
    ])
}

/// Creates a [`GroupNorm`] from the tensors `weight` and `bias`.
///
/// # Errors
/// If `vb` has no such tensors of `num_channels` elements, or `num_groups` does not divide `num_channels`.
pub fn group_norm(
    num_groups: usize,
    num_channels: usize,
    eps: f64,
    vb: VarBuilder,
) -> Result<GroupNorm> {
    let weight = vb.get_with_hints(num_channels, "weight", Init::Const(1.))?;
    let bias = vb.get_with_hints(num_channels, "bias", Init::Const(0.))?;
    GroupNorm::new(weight, bias, num_channels, num_groups, eps)
}
