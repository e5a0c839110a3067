use candle_core::{Result, Tensor};

use super::cells::{CellGradient, CellMoments, CellScaling, CellSums, Cells};
use crate::nn::kernel;

/// Normalization of groups of cells, each cell with a weight and a bias: a group has `members` neighbouring cells.
#[derive(Debug, Clone, Copy)]
pub struct Groups {
    pub cells: Cells,
    pub members: usize,
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

/// The gradients of the input and, as tensors of (groups, members), of the cells' weights and biases.
pub struct GroupGradients {
    pub input: Tensor,
    pub weight: Tensor,
    pub bias: Tensor,
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

    /// The groups' statistics. Without `center` the mean is 0 and the variance is the mean of squares.
    pub fn statistics(self, xs: &Tensor, eps: f64, center: bool) -> Result<Statistics> {
        let source = match center {
            true => Source::Centered,
            false => Source::Uncentered,
        };
        let cells = Cells {
            cells: self.count(),
            inner: self.cells.inner * self.members,
            ..self.cells
        };
        let [mean, variance] = kernel::run(&CellMoments { cells, center }, [xs])?;
        Statistics::new(&mean, &variance, eps, source)
    }

    /// (x − mean) · scale · weight + bias, where weight and bias are of (groups, members).
    pub fn normalize(
        self,
        xs: &Tensor,
        statistics: &Statistics,
        weight: &Tensor,
        bias: &Tensor,
    ) -> Result<Tensor> {
        let scaling = CellScaling {
            cells: self.cells,
            mean: self.spread(&statistics.mean)?,
            scale: self.spread(&weight.broadcast_mul(&statistics.scale)?)?,
            shift: self.spread(bias)?,
        };
        let [ys] = kernel::run(&scaling, [xs])?;
        Ok(ys)
    }

    /// The gradients of [`normalize`](Self::normalize).
    pub fn gradients(
        self,
        [xs, dys]: [&Tensor; 2],
        statistics: &Statistics,
        weight: &Tensor,
    ) -> Result<GroupGradients> {
        let (xs, dys) = (&xs.contiguous()?, &dys.contiguous()?);
        let mean = self.spread(&statistics.mean)?;
        let scale = &statistics.scale;
        let sums = CellSums {
            cells: self.cells,
            mean: mean.clone(),
        };
        let [bias, along] = kernel::run(&sums, [xs, dys])?;
        let of_groups = |values: Tensor| values.reshape((self.count(), self.members));
        let (bias, along) = (of_groups(bias)?, of_groups(along)?.broadcast_mul(scale)?);
        let len = (self.cells.len() * self.members) as f64;
        let mean_of = |sums: &Tensor| (sums * weight)?.sum_keepdim(1)? / len;
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
        let gradient = CellGradient {
            cells: self.cells,
            mean,
            scale: self.spread(&weight.broadcast_mul(scale)?)?,
            slope: self.spread(&slope)?,
            shift: self.spread(&shift)?,
        };
        let [input] = kernel::run(&gradient, [xs, dys])?;
        Ok(GroupGradients {
            input,
            weight: along,
            bias,
        })
    }
}
