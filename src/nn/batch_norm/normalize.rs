use candle_core::{Result, Tensor, Var, bail};
use candle_nn::ModuleT;

use super::BatchNorm;
use crate::nn::graph::{Backward, Gradients, record};
use crate::nn::norm::cells::Cells;
use crate::nn::norm::groups::{Groups, Source, Statistics};
use crate::nn::norm::{check_type, statistics_type, zeros};
use crate::nn::recompute::is_recomputing;

impl BatchNorm {
    /// Normalizes with the statistics of the batch and updates the running ones. The running variance takes the unbiased variance:
    /// n / (n − 1) times that of the batch, for n values of each channel.
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
        let dense = x.detach().contiguous()?;
        let statistics = groups.statistics(&dense, self.eps(), self.remove_mean)?;
        let unbiased = (&statistics.variance * (len as f64 / (len as f64 - 1.)))?;
        let mean = self.moved(self.running_mean(), &statistics.mean)?;
        let variance = self.moved(self.running_var(), &unbiased)?;
        let ys = self.normalize(groups, statistics, x, &dense)?;
        if is_recomputing() {
            return Ok(ys); // the first run has updated them
        }
        if self.remove_mean {
            Var::from_tensor(self.running_mean())?.set(&mean)?;
        }
        Var::from_tensor(self.running_var())?.set(&variance)?;
        Ok(ys)
    }

    fn forward_eval(&self, x: &Tensor) -> Result<Tensor> {
        let groups = self.groups(x)?;
        let wide = |running: &Tensor| running.detach().to_dtype(statistics_type(x.dtype()));
        // A copy: training may replace the running mean before the backward pass.
        let (mean, variance) = (
            wide(self.running_mean())?.copy()?,
            wide(self.running_var())?,
        );
        let statistics = Statistics::new(&mean, &variance, self.eps(), Source::Constant)?;
        self.normalize(groups, statistics, x, &x.detach().contiguous()?)
    }

    /// A running statistic, moved towards that of a batch.
    fn moved(&self, running: &Tensor, of_batch: &Tensor) -> Result<Tensor> {
        let of_batch = of_batch.flatten_all()?.to_dtype(running.dtype())?;
        let kept = (running.detach() * (1. - self.momentum()))?;
        kept + (of_batch * self.momentum())?
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

    /// `dense` has the values of `x`, contiguous and outside the graph.
    fn normalize(
        &self,
        groups: Groups,
        statistics: Statistics,
        x: &Tensor,
        dense: &Tensor,
    ) -> Result<Tensor> {
        const NAME: &str = "batch-norm";
        let Some((weight, bias)) = self.weight_and_bias() else {
            let ones = statistics.mean.ones_like()?;
            let ys = forward(groups, &statistics, dense, &ones, &ones.zeros_like()?)?;
            return record(NAME, [x], ys, move |given| {
                backward(groups, &statistics, given)
            });
        };
        check_type(NAME, x, weight)?;
        check_type(NAME, x, bias)?;
        let ys = forward(
            groups,
            &statistics,
            dense,
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
