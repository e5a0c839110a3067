//! Group normalization, as [`mod@candle_nn::group_norm`], with a backward pass that keeps little memory.
//!
//! Each group of each sample is normalized by itself, in training and in evaluation alike: a sample's value does not depend on the
//! others, so a batch may be cut anywhere.

use candle_core::{Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

use super::kernel::{dense, runs_on};
use super::norm::{Cells, Groups};

/// Normalization of groups of channels ([Wu and He, 2018](https://arxiv.org/abs/1803.08494)), as [`candle_nn::GroupNorm`].
///
/// The input has the shape (batch, channels, …) with at least three dimensions and any strides. The statistics of f16 and bf16 are
/// computed in f32. It keeps its output, and three numbers for each group of each sample.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Module, VarBuilder, VarMap, group_norm};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let norm = group_norm(2, 6, 1e-5, vb)?; // 2 groups of 3 channels
/// let x = Tensor::randn(5f32, 2., (4, 6, 8, 8), &Device::Cpu)?; // [batch, channels, height, width]
/// let y = norm.forward(&x)?;
/// assert!(y.mean_all()?.to_scalar::<f32>()?.abs() < 1e-4);
/// # Ok(())
/// # }
/// ```
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
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{GroupNorm, Module};
    ///
    /// let weight = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// let bias = Tensor::new(&[0f32, 10.], &Device::Cpu)?;
    /// let norm = GroupNorm::new(weight, bias, 2, 1, 0.)?; // both channels in one group
    /// let x = Tensor::new(&[[[1f32], [3.]]], &Device::Cpu)?; // [batch, channels, positions]
    /// assert_eq!(norm.forward(&x)?.to_vec3::<f32>()?, [[[-1.], [12.]]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
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
        let [batch, channels, first, others @ ..] = xs.dims() else {
            bail!(
                "GroupNorm: the input needs at least 3 dimensions, got {:?}",
                xs.shape()
            )
        };
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
                inner: first * others.iter().product::<usize>(),
            },
            members: self.num_channels / self.num_groups,
            parameters: self.num_channels,
        })
    }
}

impl Module for GroupNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let groups = self.groups(xs)?;
        if !runs_on(xs.device()) {
            let (weight, bias) = (self.weight.clone(), self.bias.clone());
            let (channels, groups) = (self.num_channels, self.num_groups);
            return candle_nn::GroupNorm::new(weight, bias, channels, groups, self.eps)?
                .forward(xs);
        }
        let contiguous = dense("group-norm", &xs.detach())?;
        let statistics = groups.statistics(&contiguous, self.eps, true)?;
        let parameters = Some((&self.weight, &self.bias));
        groups.normalize("group-norm", xs, &contiguous, statistics, parameters)
    }
}

/// Creates a [`GroupNorm`] from the tensors `weight` and `bias`.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{VarBuilder, VarMap, group_norm};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// group_norm(8, 64, 1e-5, vb.pp("norm"))?; // `norm.weight` and `norm.bias`
/// let error = group_norm(7, 64, 1e-5, vb.pp("norm")).unwrap_err();
/// assert!(error.to_string().contains("num_groups (7) must divide num_channels (64)"));
/// # Ok::<(), candle_core::Error>(())
/// ```
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
