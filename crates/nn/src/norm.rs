//! Normalization of cells, such as the channels of a picture, and of groups of them: sums over cells, and what is computed with them.

use candle_core::{Result, Shape, Tensor};

use super::graph::{Backward, Gradients, record};
use super::kernel::{
    self, Extent, Kernel, Number, Plan, rows_at_once, rows_of_part, same_type, sum_of, sum_type,
};

/// A tensor of `outer` × `cells` × `inner` elements. A cell is what has one index in the middle.
#[derive(Debug, Clone, Copy)]
pub struct Cells {
    pub outer: usize,
    pub cells: usize,
    pub inner: usize,
}

impl Cells {
    /// Number of elements of a cell.
    pub fn len(self) -> usize {
        self.outer * self.inner
    }

    /// Number of elements of a row: one of each cell where these lie side by side, else `inner` of one cell.
    fn width(self) -> usize {
        match self.inner {
            1 => self.cells,
            inner => inner,
        }
    }

    /// Writes f(values, x, dy) for each element, with the values of its cell. `first` is the number of the first row.
    fn map<S: Number, const N: usize>(
        self,
        first: usize,
        values: [&[S]; N],
        [xs, dys]: [&[S]; 2],
        out: &mut [S],
        f: impl Fn([S; N], S, S) -> S,
    ) {
        let width = self.width().max(1);
        let of_cell = |cell: usize| values.map(|values| *values.get(cell).unwrap_or(&S::zero()));
        let rows = out
            .chunks_mut(width)
            .zip(xs.chunks(width).zip(dys.chunks(width)));
        if self.inner == 1 {
            let of_cells: Vec<_> = (0..self.cells).map(of_cell).collect();
            for (out, (x, dy)) in rows {
                for (((out, x), dy), values) in out.iter_mut().zip(x).zip(dy).zip(&of_cells) {
                    *out = f(*values, *x, *dy);
                }
            }
            return;
        }
        for (row, (out, (x, dy))) in (first..).zip(rows) {
            let values = of_cell(row % self.cells);
            for ((out, x), dy) in out.iter_mut().zip(x).zip(dy) {
                *out = f(values, *x, *dy);
            }
        }
    }

    /// Adds up f(x − mean, dy), and that times x − mean, for each cell. `first` is the number of the first row.
    fn sums<S: Number>(
        self,
        first: usize,
        [means, xs, dys]: [&[S]; 3],
        [sums, products]: [&mut [S]; 2],
        f: impl Fn(S, S) -> S,
    ) {
        let width = self.width().max(1);
        let rows = xs.chunks(width).zip(dys.chunks(width));
        if self.inner == 1 {
            for (x, dy) in rows {
                let sums = sums.iter_mut().zip(products.iter_mut()).zip(means);
                for ((((sum, product), mean), x), dy) in sums.zip(x).zip(dy) {
                    let deviation = *x - *mean;
                    let dy = f(deviation, *dy);
                    *sum += dy;
                    *product += deviation * dy;
                }
            }
            return;
        }
        let sums = sums.iter_mut().zip(products).zip(first..);
        for (((sum, product), row), (x, dy)) in sums.zip(rows) {
            let mean = *means.get(row % self.cells).unwrap_or(&S::zero());
            *sum = sum_of(x, dy, |x, dy| f(x - mean, dy));
            *product = sum_of(x, dy, |x, dy| (x - mean) * f(x - mean, dy));
        }
    }
}

/// Σ dy and Σ dy · (x − mean) for each cell, from the means, x and dy, or with x − mean in the place of dy.
pub struct CellSums {
    pub cells: Cells,
    pub of_deviations: bool,
}

impl Kernel<3, 2> for CellSums {
    const NAME: &'static str = "cell_sums";

    const WIDE: usize = 1;

    fn plan(&self, [_, xs, _]: [&Tensor; 3]) -> Plan {
        let (cells, width) = (self.cells, self.cells.width());
        let rows = xs.elem_count() / width.max(1);
        let (at_once, of_sums) = match cells.inner {
            1 => (rows_of_part(rows, width), Extent::Block(width)),
            _ => (rows_at_once(width), Extent::Row(1)),
        };
        Plan {
            rows,
            at_once,
            inputs: vec![Extent::All, Extent::Row(width), Extent::Row(width)],
            outputs: vec![(Shape::from(cells.cells), of_sums); 2],
            is_wide: true,
        }
    }

    fn cpu<S: Number>(&self, first: usize, inputs: [&[S]; 3], outputs: [&mut [S]; 2]) {
        // Decided here, because a branch for each element keeps the loops from being vectorized.
        match self.of_deviations {
            true => self
                .cells
                .sums(first, inputs, outputs, |deviation, _| deviation),
            false => self.cells.sums(first, inputs, outputs, |_, dy| dy),
        }
    }
}

/// y = (x − mean) · scale + shift, from the means, scales and shifts of the cells and x.
impl Kernel<4, 1> for Cells {
    const NAME: &'static str = "cell_scaling";

    const WIDE: usize = 3;

    fn plan(&self, [.., xs]: [&Tensor; 4]) -> Plan {
        let (all, row) = (Extent::All, Extent::Row(self.width()));
        Plan::of_rows(xs, self.width(), [all, all, all, row])
    }

    fn cpu<S: Number>(&self, first: usize, inputs: [&[S]; 4], [ys]: [&mut [S]; 1]) {
        let [mean, scale, shift, xs] = inputs;
        let values = [mean, scale, shift];
        self.map(first, values, [xs, xs], ys, |[mean, scale, shift], x, _| {
            (x - mean) * scale + shift
        });
    }
}

/// dx = dy · scale − (x − mean) · slope − shift, from the means, scales, slopes and shifts of the cells, x and dy.
impl Kernel<6, 1> for Cells {
    const NAME: &'static str = "cell_gradient";

    const WIDE: usize = 4;

    fn plan(&self, [.., xs]: [&Tensor; 6]) -> Plan {
        let (all, row) = (Extent::All, Extent::Row(self.width()));
        Plan::of_rows(xs, self.width(), [all, all, all, all, row, row])
    }

    fn cpu<S: Number>(&self, first: usize, inputs: [&[S]; 6], [dxs]: [&mut [S]; 1]) {
        let [mean, scale, slope, shift, xs, dys] = inputs;
        let values = [mean, scale, slope, shift];
        self.map(
            first,
            values,
            [xs, dys],
            dxs,
            |[mean, scale, slope, shift], x, dy| dy * scale - (x - mean) * slope - shift,
        );
    }
}

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
        let wide = parameter.detach().to_dtype(sum_type(parameter.dtype()))?;
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
        let zeros = Tensor::zeros(cells.cells, sum_type(xs.dtype()), xs.device())?;
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
                let [ys] = kernel::run(&self.cells, [&mean, &scale, &shift, dense])?;
                ys
            }
        };
        let (none, is_affine) = (xs.detach(), parameters.is_some());
        let (weight, bias) = parameters.unwrap_or((&none, &none));
        record(name, [xs, weight, bias], ys, move |given| {
            self.backward(&statistics, is_affine, given)
        })
    }

    /// The gradients of the input and, if there are any, of the weight and the bias.
    fn backward(
        self,
        statistics: &Statistics,
        is_affine: bool,
        given: Backward<3>,
    ) -> Result<Gradients<3>> {
        let ([xs, of_weight, of_bias], [_, needs_weight, needs_bias]) =
            (&given.inputs, given.needs);
        let weight = match is_affine {
            true => self.of_cells(of_weight)?,
            false => statistics.mean.ones_like()?,
        };
        let (xs, dys) = (
            &kernel::dense("norm", xs)?,
            &kernel::dense("norm", &given.gradient)?,
        );
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
        let [dxs] = kernel::run(&self.cells, inputs)?;
        let dweight = needs_weight.then(|| self.of_parameter(&along, of_weight));
        let dbias = needs_bias.then(|| self.of_parameter(&bias, of_bias));
        Ok([Some(dxs), dweight.transpose()?, dbias.transpose()?])
    }
}
