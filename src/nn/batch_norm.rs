//! Batch normalization, as [`candle_nn::batch_norm`], with a backward pass that keeps little memory.

use candle_core::{Result, Tensor, Var, bail};
pub use candle_nn::batch_norm::BatchNormConfig;
use candle_nn::{ModuleT, VarBuilder};

use super::graph::{Backward, Gradients, record};
use super::norm::cells::Cells;
use super::norm::groups::{Groups, Source, Statistics};
use super::norm::{check_type, statistics_type, zeros};

/// Normalization of channels over a batch ([Ioffe and Szegedy, 2015](https://arxiv.org/abs/1502.03167)), as [`candle_nn::BatchNorm`].
///
/// The input has the shape (batch, channels, …) with at least two dimensions and any strides. The statistics of f16 and bf16 are
/// computed in f32. It keeps its output, and three numbers for each channel.
///
/// In training it replaces the running statistics, which are Vars, after the output is computed. Name them as buffers of a trainer,
/// so that a retried micro-batch does not count twice.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    inner: candle_nn::BatchNorm,
    remove_mean: bool,
}

impl BatchNorm {
    /// With a momentum of 0.1. All tensors have `num_features` elements, the number of channels.
    ///
    /// # Errors
    /// If a tensor has another shape, or `eps` is negative.
    pub fn new(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: f64,
    ) -> Result<Self> {
        Self::around(candle_nn::BatchNorm::new(
            num_features,
            running_mean,
            running_var,
            weight,
            bias,
            eps,
        ))
    }

    /// [`new`](Self::new) without weight and bias.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn new_no_bias(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        eps: f64,
    ) -> Result<Self> {
        Self::around(candle_nn::BatchNorm::new_no_bias(
            num_features,
            running_mean,
            running_var,
            eps,
        ))
    }

    /// [`new`](Self::new) with a momentum from 0 to 1: the part of a new running statistic that comes from the batch.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if the momentum is out of range.
    pub fn new_with_momentum(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: f64,
        momentum: f64,
    ) -> Result<Self> {
        Self::around(candle_nn::BatchNorm::new_with_momentum(
            num_features,
            running_mean,
            running_var,
            weight,
            bias,
            eps,
            momentum,
        ))
    }

    /// [`new_with_momentum`](Self::new_with_momentum) without weight and bias.
    ///
    /// # Errors
    /// As [`new_with_momentum`](Self::new_with_momentum).
    pub fn new_no_bias_with_momentum(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        eps: f64,
        momentum: f64,
    ) -> Result<Self> {
        Self::around(candle_nn::BatchNorm::new_no_bias_with_momentum(
            num_features,
            running_mean,
            running_var,
            eps,
            momentum,
        ))
    }

    fn around(inner: Result<candle_nn::BatchNorm>) -> Result<Self> {
        Ok(Self {
            inner: inner?,
            remove_mean: true,
        })
    }

    /// The running mean, a Var.
    pub fn running_mean(&self) -> &Tensor {
        self.inner.running_mean()
    }

    /// The running variance, a Var.
    pub fn running_var(&self) -> &Tensor {
        self.inner.running_var()
    }

    /// The number added to the variance.
    pub fn eps(&self) -> f64 {
        self.inner.eps()
    }

    /// The weight and the bias, if there are any.
    pub fn weight_and_bias(&self) -> Option<(&Tensor, &Tensor)> {
        self.inner.weight_and_bias()
    }

    /// The part of a new running statistic that comes from the batch.
    pub fn momentum(&self) -> f64 {
        self.inner.momentum()
    }

    /// Normalizes with the statistics of the batch and updates the running ones, with the variance of a sample of a larger population.
    ///
    /// # Errors
    /// If the input has fewer than two dimensions, other channels, or only one value for each channel, which has no variance (candle
    /// makes the running variance NaN there).
    pub fn forward_train(&self, x: &Tensor) -> Result<Tensor> {
        let groups = self.groups(x)?;
        let len = groups.cells.len();
        if len < 2 {
            bail!(
                "batch-norm in training needs at least 2 values for each channel, got {:?}",
                x.shape()
            )
        }
        let statistics = groups.statistics(x, self.eps(), self.remove_mean)?;
        let (mean, variance) = (statistics.mean.clone(), statistics.variance.clone());
        let ys = self.normalize(groups, statistics, x)?;
        if self.remove_mean {
            self.update(self.running_mean(), &mean)?;
        }
        let unbiased = (variance * (len as f64 / (len as f64 - 1.)))?;
        self.update(self.running_var(), &unbiased)?;
        Ok(ys)
    }

    fn forward_eval(&self, x: &Tensor) -> Result<Tensor> {
        let groups = self.groups(x)?;
        let wide = |running: &Tensor| running.detach().to_dtype(statistics_type(x.dtype()));
        let (mean, variance) = (wide(self.running_mean())?, wide(self.running_var())?);
        let statistics = Statistics::new(&mean, &variance, self.eps(), Source::Constant)?;
        self.normalize(groups, statistics, x)
    }

    /// Moves a running statistic towards that of a batch.
    fn update(&self, running: &Tensor, of_batch: &Tensor) -> Result<()> {
        let of_batch = of_batch.flatten_all()?.to_dtype(running.dtype())?;
        let kept = (running.detach() * (1. - self.momentum()))?;
        let updated = (kept + (of_batch * self.momentum())?)?;
        Var::from_tensor(running)?.set(&updated)
    }

    /// Each channel is a group by itself.
    fn groups(&self, x: &Tensor) -> Result<Groups> {
        let channels = self.running_mean().dim(0)?;
        match x.dims() {
            [outer, found, inner @ ..] if *found == channels => Ok(Groups {
                cells: Cells {
                    outer: *outer,
                    cells: channels,
                    inner: inner.iter().product(),
                },
                members: 1,
            }),
            [_, _, ..] => bail!(
                "batch-norm: expected {channels} channels, got {:?}",
                x.shape()
            ),
            _ => bail!(
                "batch-norm: the input needs at least 2 dimensions, got {:?}",
                x.shape()
            ),
        }
    }

    fn normalize(&self, groups: Groups, statistics: Statistics, x: &Tensor) -> Result<Tensor> {
        const NAME: &str = "batch-norm";
        let Some((weight, bias)) = self.weight_and_bias() else {
            let ones = statistics.mean.ones_like()?;
            let ys = forward(groups, &statistics, x, &ones, &ones.zeros_like()?)?;
            return record(NAME, [x], ys, move |given| {
                backward(groups, &statistics, given)
            });
        };
        check_type(NAME, x, weight)?;
        check_type(NAME, x, bias)?;
        let ys = forward(
            groups,
            &statistics,
            x,
            &of_channels(weight)?,
            &of_channels(bias)?,
        )?;
        record(NAME, [x, weight, bias], ys, move |given| {
            backward(groups, &statistics, given)
        })
    }
}

/// candle's layer, which other functions of candle ask for, such as [`Conv2d::absorb_bn`](candle_nn::Conv2d::absorb_bn).
impl std::ops::Deref for BatchNorm {
    type Target = candle_nn::BatchNorm;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl ModuleT for BatchNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match train {
            true => self.forward_train(x),
            false => self.forward_eval(x),
        }
    }
}

/// A parameter's values as those of groups of one member.
fn of_channels(parameter: &Tensor) -> Result<Tensor> {
    let wide = parameter
        .detach()
        .to_dtype(statistics_type(parameter.dtype()))?;
    wide.reshape(((), 1))
}

fn forward(
    groups: Groups,
    statistics: &Statistics,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<Tensor> {
    match x.elem_count() {
        0 => x.zeros_like(),
        _ => groups.normalize(x, statistics, weight, bias),
    }
}

/// The gradients of the input and, if there are any, of the weight and the bias.
fn backward<const N: usize>(
    groups: Groups,
    statistics: &Statistics,
    given: Backward<N>,
) -> Result<Gradients<N>> {
    if given.output.elem_count() == 0 {
        return zeros(&given);
    }
    let (x, weight) = match given.inputs.as_slice() {
        [x, weight, _] => (x, of_channels(weight)?),
        [x, ..] => (x, statistics.mean.ones_like()?),
        [] => return zeros(&given),
    };
    let gradients = groups.gradients([x, &given.gradient], statistics, &weight)?;
    let of_parameter = |sums: Tensor| sums.flatten_all()?.to_dtype(x.dtype());
    let (weight, bias) = (
        of_parameter(gradients.weight)?,
        of_parameter(gradients.bias)?,
    );
    let mut computed = [gradients.input, weight, bias].into_iter();
    Ok(given.needs.map(|needed| computed.next().filter(|_| needed)))
}

/// Creates a [`BatchNorm`] from the tensors `running_mean`, `running_var` and, if `config.affine`, `weight` and `bias`.
///
/// # Errors
/// If `vb` has no such tensors of `num_features` elements, or `config.eps` is negative.
pub fn batch_norm<C: Into<BatchNormConfig>>(
    num_features: usize,
    config: C,
    vb: VarBuilder,
) -> Result<BatchNorm> {
    let config = config.into();
    Ok(BatchNorm {
        inner: candle_nn::batch_norm(num_features, config, vb)?,
        remove_mean: config.remove_mean,
    })
}
