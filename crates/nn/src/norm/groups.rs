//! What GroupNorm and BatchNorm have in common: groups of neighbouring cells, their statistics, and the gradients through both.

use candle_core::{Result, Tensor};

use super::cells::{CellGradient, CellScaling, CellSums, Cells};
use super::{statistics_type, zeros};
use crate::graph::{Backward, Gradients, record};
use crate::kernel::{self, same_type};

/// Normalization of groups of cells: a group has `members` neighbouring cells.
#[derive(Debug, Clone, Copy)]
pub struct Groups {
    pub cells: Cells,
    pub members: usize,
    /// Number of weights and of biases. Cells that are a multiple of it apart share them.
    pub parameters: usize,
}

/// What the groups are normalized with: tensors of (groups, 1), f32 or f64.
#[derive(Debug, Clone)]
pub struct Statistics {
    pub mean: Tensor,
    pub variance: Tensor,
    /// 1 / √(variance + eps)
    scale: Tensor,
    source: Source,
}

/// What statistics were computed from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source {
    /// The input's mean and variance.
    Centered,
    /// The input's mean of squares; the mean is 0.
    Uncentered,
    /// Something else: the statistics have no gradient.
    Constant,
}

impl Statistics {
    pub fn new(mean: &Tensor, variance: &Tensor, eps: f64, source: Source) -> Result<Self> {
        Ok(Self {
            mean: mean.reshape(((), 1))?,
            variance: variance.reshape(((), 1))?,
            scale: (variance + eps)?.sqrt()?.recip()?.reshape(((), 1))?,
            source,
        })
    }
}

impl Groups {
    fn count(self) -> usize {
        self.cells.cells / self.members.max(1)
    }

    /// One value for each cell from values for the groups.
    fn spread(self, of_groups: &Tensor) -> Result<Tensor> {
        of_groups
            .broadcast_as((self.count(), self.members))?
            .flatten_all()?
            .contiguous()
    }

    /// A parameter's values as (groups, members).
    fn of_cells(self, parameter: &Tensor) -> Result<Tensor> {
        let wide = parameter
            .detach()
            .to_dtype(statistics_type(parameter.dtype()))?;
        let repeated = (self.cells.cells / self.parameters.max(1), self.parameters);
        wide.reshape((1, self.parameters))?
            .broadcast_as(repeated)?
            .reshape((self.count(), self.members))
    }

    /// The gradient of a parameter from those of (groups, members).
    fn of_parameter(self, sums: &Tensor, parameter: &Tensor) -> Result<Tensor> {
        let sums = match self.cells.cells == self.parameters {
            true => sums.clone(),
            false => sums.reshape(((), self.parameters))?.sum(0)?,
        };
        sums.to_dtype(parameter.dtype())?.reshape(parameter.shape())
    }

    /// The groups' statistics, of a contiguous tensor. Without `center` the mean is 0 and the variance is the mean of squares.
    pub fn statistics(self, xs: &Tensor, eps: f64, center: bool) -> Result<Statistics> {
        let cells = Cells {
            cells: self.count(),
            inner: self.cells.inner * self.members,
            ..self.cells
        };
        let sums = |mean: &Tensor, of_deviations| {
            let sums = CellSums {
                cells,
                of_deviations,
            };
            kernel::run(&sums, [mean, xs, xs])
        };
        let len = cells.len() as f64;
        let zeros = Tensor::zeros(cells.cells, statistics_type(xs.dtype()), xs.device())?;
        let (mean, source) = match center {
            true => {
                let [sum, _] = sums(&zeros, false)?;
                ((sum / len)?, Source::Centered)
            }
            false => (zeros, Source::Uncentered),
        };
        let [_, squares] = sums(&mean, true)?;
        Statistics::new(&mean, &(squares / len)?, eps, source)
    }

    /// (x − mean) · scale · weight + bias, as a function of x and of the parameters, if there are any. `dense` has the values of `xs`,
    /// contiguous and outside the graph.
    pub fn normalize(
        self,
        name: &'static str,
        xs: &Tensor,
        dense: &Tensor,
        statistics: Statistics,
        parameters: Option<(&Tensor, &Tensor)>,
    ) -> Result<Tensor> {
        let (weight, bias) = match parameters {
            Some((weight, bias)) => {
                same_type(name, xs.dtype(), weight.dtype())?;
                same_type(name, xs.dtype(), bias.dtype())?;
                (self.of_cells(weight)?, self.of_cells(bias)?)
            }
            None => (statistics.mean.ones_like()?, statistics.mean.zeros_like()?),
        };
        let ys = match xs.elem_count() {
            0 => xs.zeros_like()?,
            _ => {
                let mean = self.spread(&statistics.mean)?;
                let scale = self.spread(&weight.broadcast_mul(&statistics.scale)?)?;
                let shift = self.spread(&bias)?;
                let [ys] = kernel::run(&CellScaling(self.cells), [&mean, &scale, &shift, dense])?;
                ys
            }
        };
        match parameters {
            None => record(name, [xs], ys, move |given| {
                self.backward(&statistics, given)
            }),
            Some((weight, bias)) => record(name, [xs, weight, bias], ys, move |given| {
                self.backward(&statistics, given)
            }),
        }
    }

    /// The gradients of the input and, if there are any, of the weight and the bias.
    fn backward<const N: usize>(
        self,
        statistics: &Statistics,
        given: Backward<N>,
    ) -> Result<Gradients<N>> {
        let [xs, parameters @ ..] = given.inputs.as_slice() else {
            return zeros(&given);
        };
        if given.output.elem_count() == 0 {
            return zeros(&given);
        }
        let weight = match parameters {
            [weight, ..] => self.of_cells(weight)?,
            [] => statistics.mean.ones_like()?,
        };
        let (xs, dys) = (&xs.contiguous()?, &given.gradient.contiguous()?);
        let (mean, scale) = (self.spread(&statistics.mean)?, &statistics.scale);
        let sums = CellSums {
            cells: self.cells,
            of_deviations: false,
        };
        let sums = kernel::run(&sums, [&mean, xs, dys])?;
        let [bias, along] = sums
            .each_ref()
            .map(|sums| sums.reshape((self.count(), self.members)));
        let (bias, along) = (bias?, along?.broadcast_mul(scale)?);
        let len = (self.cells.len() * self.members) as f64;
        let mean_of = |sums: &Tensor| (sums * &weight)?.sum_keepdim(1)? / len;
        // dx = scale · (w · dy − mean(w · dy) − n · mean(w · dy · n)) with n = (x − mean) · scale
        let zero = scale.zeros_like()?;
        let shift = match statistics.source == Source::Centered {
            true => (mean_of(&bias)? * scale)?,
            false => zero.clone(),
        };
        let slope = match statistics.source != Source::Constant {
            true => (mean_of(&along)? * scale.sqr()?)?,
            false => zero,
        };
        let scale = self.spread(&weight.broadcast_mul(scale)?)?;
        let (slope, shift) = (self.spread(&slope)?, self.spread(&shift)?);
        let inputs = [&mean, &scale, &slope, &shift, xs, dys];
        let [dxs] = kernel::run(&CellGradient(self.cells), inputs)?;
        let mut gradients = vec![dxs];
        for (sums, parameter) in [along, bias].iter().zip(parameters) {
            gradients.push(self.of_parameter(sums, parameter)?);
        }
        let mut gradients = gradients.into_iter();
        Ok(given
            .needs
            .map(|needed| gradients.next().filter(|_| needed)))
    }
}
