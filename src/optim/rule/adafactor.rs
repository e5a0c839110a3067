use super::elementwise::Rates;
use super::update_rule::{Kept, Kernel, Rule};
use crate::optim::cpu::{
    BLOCK, By, CHUNK, Gradient, Lanes, Real, Target, in_blocks, in_stretches, own, share, sum,
    sum_of_squares, take,
};

/// Hyper-parameters of [`Adafactor`](crate::optim::Adafactor), as in PyTorch (2.5 and later), after Shazeer & Stern 2018
/// (arXiv 1804.04235).
///
/// ```
/// use candle_headroom::optim::ParamsAdafactor;
///
/// assert_eq!(ParamsAdafactor::default().lr, 0.01);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamsAdafactor {
    /// The largest step relative to the parameter's root mean square. It falls with one over the square root of the step.
    pub lr: f64,
    /// Exponent of the second moment's decay: beta2 at step t is 1 − t^beta2_decay.
    pub beta2_decay: f64,
    /// The smallest square root of the second moment, and never below what its type can hold. `None` or 0 for the machine epsilon
    /// of the type of the computation (f32, or f64 for f64 parameters).
    pub eps1: Option<f64>,
    /// The smallest root mean square of a parameter that a step is relative to.
    pub eps2: f64,
    /// The largest root mean square of a step before it is scaled.
    pub clip_threshold: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for ParamsAdafactor {
    fn default() -> Self {
        Self {
            lr: 0.01,
            beta2_decay: -0.8,
            eps1: None,
            eps2: 1e-3,
            clip_threshold: 1.,
            weight_decay: 0.,
        }
    }
}

impl Rule for ParamsAdafactor {
    const NAME: &'static str = "Adafactor";
    const KERNEL: Kernel = Kernel::Adafactor;

    hyper_parameters! {
        lr: NotNegative,
        weight_decay: NotNegative,
        beta2_decay: NotPositive,
        eps1: NotNegative,
        eps2: NotNegative,
        clip_threshold: Positive,
    }

    fn state(&self, dims: &[usize]) -> Vec<Kept> {
        let kept = |name, dims| Kept {
            name,
            dims,
            is_moment: false,
        };
        match dims {
            [batches @ .., rows, columns] => vec![
                kept("row_var", [batches, &[*rows, 1]].concat()),
                kept("col_var", [batches, &[1, *columns]].concat()),
            ],
            _ => vec![kept("variance", dims.to_vec())],
        }
    }

    fn scratch(&self, dims: &[usize]) -> usize {
        match dims {
            [batches @ .., _, _] => batches.iter().product(),
            _ => 0,
        }
    }

    fn apply(&self, rates: Rates, step: u64, target: Target<'_>) {
        match target.lanes.parameter.is_f64() {
            true => self.run::<f64>(f64::EPSILON, rates, step, target),
            false => self.run::<f32>(f32::EPSILON.into(), rates, step, target),
        }
    }
}

impl ParamsAdafactor {
    fn run<C: Real>(&self, epsilon: f64, rates: Rates, step: u64, target: Target<'_>) {
        let Target {
            mut lanes,
            dims,
            partials,
            scratch,
            is_shared,
        } = target;
        let len = lanes.len();
        let gradient = lanes.gradient;
        let eps1 = self.eps1.filter(|eps1| *eps1 > 0.).unwrap_or(epsilon);
        let add = (step as f64).powf(self.beta2_decay);

        let squares = sum(partials, len, is_shared, |range| {
            let mut total = 0.;
            in_blocks(range, |start, block: &mut [C]| {
                lanes.load_parameter(start, block);
                total += sum_of_squares(block);
            });
            total
        });
        let mean_square = (squares / len as f64).sqrt();
        let size = mean_square.max(self.eps2) * rates.learning_rate.min(1. / (step as f64).sqrt());

        let [first, second] = std::mem::take(&mut lanes.state).map(own::<C>);
        let estimate = match dims {
            [.., rows, columns] => {
                let (rows, columns) = (*rows, *columns);
                blend_rows(first, gradient, columns, add, is_shared);
                blend_columns(second, gradient, rows, columns, add, is_shared);
                for (mean, rows) in scratch.iter_mut().zip(first.chunks(rows.max(1))) {
                    let total: f64 = rows.iter().map(|row| row.to_f64()).sum();
                    *mean = (total / rows.len() as f64).max(eps1);
                }
                Estimate::Factored {
                    rows: first,
                    columns: second,
                    means: scratch,
                    per_mean: rows,
                }
            }
            _ => {
                blend_elements(first, gradient, add, is_shared);
                Estimate::Full(first)
            }
        };
        let floor = (eps1 * eps1).max(C::SMALLEST);

        let squares = sum(partials, len, is_shared, |range| {
            let mut total = 0.;
            in_blocks(range, |start, block: &mut [C]| {
                gradient.load_adjusted(start, block);
                estimate.divide(start, floor, block);
                total += sum_of_squares(block);
            });
            total
        });
        let excess = squares.sqrt() / ((len as f64).sqrt() * self.clip_threshold);
        let size = C::from_f64(size / excess.max(1.));
        let keep = C::from_f64(1. - rates.learning_rate * rates.weight_decay);

        let units = if is_shared { len.div_ceil(CHUNK) } else { 1 };
        let unit = if is_shared { CHUNK } else { len };
        let work = |mut lanes: Lanes<'_>| {
            let (mut parameter, mut step) = ([C::default(); BLOCK], [C::default(); BLOCK]);
            while let Some(mut block) = lanes.take(BLOCK) {
                let parameter = parameter.get_mut(..block.len()).unwrap_or_default();
                let step = step.get_mut(..block.len()).unwrap_or_default();
                block.load_parameter(0, parameter);
                gradient.load_adjusted(block.start, step);
                estimate.divide(block.start, floor, step);
                for (p, u) in parameter.iter_mut().zip(step) {
                    *p = keep * *p - size * *u;
                }
                block.store_parameter(parameter);
            }
        };
        share(By::Candle, units, lanes, |rest| rest.take(unit), work);
    }
}

/// The second moment of a parameter's gradient.
enum Estimate<'a, C> {
    Full(&'a [C]),
    /// The row's times the column's, over the mean of the matrix's rows.
    Factored {
        rows: &'a [C],
        columns: &'a [C],
        means: &'a [f64],
        per_mean: usize,
    },
}

impl<C: Real> Estimate<'_, C> {
    /// Divides gradients, from element `start` on, by the square root of their second moment.
    fn divide(&self, start: usize, floor: f64, gradients: &mut [C]) {
        let floor = C::from_f64(floor);
        let root = |square: C| if square > floor { square } else { floor }.sqrt();
        match self {
            Self::Full(squares) => {
                let squares = squares.get(start..).unwrap_or_default();
                for (g, square) in gradients.iter_mut().zip(squares) {
                    *g = *g / root(*square);
                }
            }
            Self::Factored {
                rows,
                columns,
                means,
                per_mean,
            } => {
                let width = columns.len() / means.len().max(1);
                let mut rest = gradients;
                let mut start = start;
                while !rest.is_empty() && width > 0 {
                    let (row, column) = (start / width, start % width);
                    let matrix = row / per_mean;
                    let head = take(&mut rest, width - column);
                    start += head.len();
                    let (Some(row), Some(mean)) = (rows.get(row), means.get(matrix)) else {
                        return;
                    };
                    let factor = C::from_f64(row.to_f64() / mean);
                    let columns = columns.get(matrix * width + column..).unwrap_or_default();
                    for (g, column) in head.iter_mut().zip(columns) {
                        *g = *g / root(factor * *column);
                    }
                }
            }
        }
    }
}

/// Blends a gradient's squares into the second moment of each element.
fn blend_elements<C: Real>(kept: &mut [C], gradient: Gradient<'_>, add: f64, is_shared: bool) {
    in_stretches(kept, CHUNK, is_shared, |start, kept| {
        in_blocks(0..kept.len(), |at, block: &mut [C]| {
            gradient.load_adjusted(start + at, block);
            for (kept, g) in kept.iter_mut().skip(at).zip(block) {
                *kept = blend(*kept, g.to_f64() * g.to_f64(), add);
            }
        });
    });
}

/// Blends the mean square of each row into the rows' second moment.
fn blend_rows<C: Real>(
    kept: &mut [C],
    gradient: Gradient<'_>,
    columns: usize,
    add: f64,
    is_shared: bool,
) {
    let rows = (CHUNK / columns.max(1)).max(1);
    in_stretches(kept, rows, is_shared, |start, kept| {
        for (row, kept) in (start..).zip(kept) {
            let mut total = 0.;
            let row = row * columns..(row + 1) * columns;
            in_blocks(row, |start, block: &mut [C]| {
                gradient.load_adjusted(start, block);
                total += sum_of_squares(block);
            });
            *kept = blend(*kept, total / columns as f64, add);
        }
    });
}

/// Blends the mean square of each column into the columns' second moment.
fn blend_columns<C: Real>(
    kept: &mut [C],
    gradient: Gradient<'_>,
    rows: usize,
    columns: usize,
    add: f64,
    is_shared: bool,
) {
    in_stretches(kept, BLOCK, is_shared, |mut start, mut kept| {
        while !kept.is_empty() && columns > 0 {
            let (matrix, column) = (start / columns, start % columns);
            let kept = take(&mut kept, (columns - column).min(BLOCK));
            start += kept.len();
            let (mut totals, mut block) = ([0.; BLOCK], [C::default(); BLOCK]);
            let block = block.get_mut(..kept.len()).unwrap_or_default();
            for row in 0..rows {
                gradient.load_adjusted((matrix * rows + row) * columns + column, block);
                for (total, g) in totals.iter_mut().zip(&*block) {
                    *total += g.to_f64() * g.to_f64();
                }
            }
            for (kept, total) in kept.iter_mut().zip(totals) {
                *kept = blend(*kept, total / rows as f64, add);
            }
        }
    });
}

/// `old + add · (new - old)`, as `lerp` in PyTorch.
fn blend<C: Real>(old: C, new: f64, add: f64) -> C {
    C::from_f64(old.to_f64() + add * (new - old.to_f64()))
}
