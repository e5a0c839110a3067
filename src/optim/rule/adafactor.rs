use candle_core::WithDType;

use super::hyper_parameter::{HyperParameter, Range, number};
use super::update_rule::{Kept, Rates, Rule};
use crate::optim::cpu::{
    BLOCK, CHUNK, Gradient, Lanes, Moment, Real, Stored, Target, in_blocks, in_stretches, sum,
    sum_of_squares, take,
};

/// Hyper-parameters of [`Adafactor`](crate::optim::Adafactor), as in PyTorch (2.5 and later), after Shazeer & Stern 2018
/// (arXiv 1804.04235).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamsAdafactor {
    /// The largest step relative to the parameter's root mean square. It falls with one over the square root of the step.
    pub lr: f64,
    /// Exponent of the second moment's decay: beta2 at step t is 1 − t^beta2_decay.
    pub beta2_decay: f64,
    /// The smallest square root of the second moment, and never below what its type can hold. 0 is the machine epsilon of the type
    /// of the computation (f32, or f64 for f64 parameters).
    pub eps1: f64,
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
            eps1: 0.,
            eps2: 1e-3,
            clip_threshold: 1.,
            weight_decay: 0.,
        }
    }
}

impl Rule for ParamsAdafactor {
    const NAME: &'static str = "Adafactor";
    const KERNELS: &'static str = "adafactor";

    fn hyper_parameters(&mut self) -> impl Iterator<Item = HyperParameter<'_>> {
        [
            number("lr", Range::NOT_NEGATIVE, &mut self.lr),
            number("weight_decay", Range::NOT_NEGATIVE, &mut self.weight_decay),
            number("beta2_decay", Range::NOT_POSITIVE, &mut self.beta2_decay),
            number("eps1", Range::NOT_NEGATIVE, &mut self.eps1),
            number("eps2", Range::NOT_NEGATIVE, &mut self.eps2),
            number("clip_threshold", Range::POSITIVE, &mut self.clip_threshold),
        ]
        .into_iter()
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

    fn matrices(dims: &[usize]) -> usize {
        match dims {
            [batches @ .., _, _] => batches.iter().product(),
            _ => 0,
        }
    }

    fn apply<P: Stored>(&self, rates: Rates, step: u64, mut target: Target<'_, P>) {
        let is_shared = target.is_shared;
        let lanes = &mut target.lanes;
        let gradient = lanes.gradient;
        let len = lanes.parameter.len();
        let count = step as f64;
        let eps1 = if self.eps1 > 0. {
            self.eps1
        } else {
            P::Real::EPSILON
        };
        let add = count.powf(self.beta2_decay);

        let squares = sum(target.partials, len, is_shared, |range| {
            let mut total = 0.;
            in_blocks(range, |start, block| {
                lanes.load_parameter(start, block);
                total += sum_of_squares(block);
            });
            total
        });
        let mean_square = (squares / len as f64).sqrt();
        let size = mean_square.max(self.eps2) * rates.learning_rate.min(1. / count.sqrt());

        let [first, second] = std::mem::take(&mut lanes.state).map(Moment::into_full);
        let estimate = match target.dims {
            &[.., rows, columns] => {
                blend_rows(first, gradient, columns, add, is_shared);
                blend_columns(second, gradient, rows, columns, add, is_shared);
                for (mean, rows) in target.scratch.iter_mut().zip(first.chunks(rows.max(1))) {
                    let total: f64 = rows.iter().map(|&row| row.to_f64()).sum();
                    *mean = (total / rows.len() as f64).max(eps1);
                }
                Estimate::Factored {
                    rows: first,
                    columns: second,
                    means: target.scratch,
                    per_mean: rows,
                }
            }
            _ => {
                blend_elements(first, gradient, add, is_shared);
                Estimate::Full(first)
            }
        };
        let floor = P::Real::from_f64((eps1 * eps1).max(P::Real::SMALLEST));

        let squares = sum(target.partials, len, is_shared, |range| {
            let mut total = 0.;
            in_blocks(range, |start, block| {
                gradient.load_adjusted(start, block);
                estimate.divide(start, floor, block);
                total += sum_of_squares(block);
            });
            total
        });
        let excess = squares.sqrt() / ((len as f64).sqrt() * self.clip_threshold);
        let size = P::Real::from_f64(size / excess.max(1.));
        let keep = P::Real::from_f64(1. - rates.learning_rate * rates.weight_decay);

        let work = |mut lanes: Lanes<'_, P>| {
            let mut parameter = [P::Real::default(); BLOCK];
            let mut step = [P::Real::default(); BLOCK];
            while let Some(mut block) = lanes.take(BLOCK) {
                let parameter = parameter
                    .get_mut(..block.parameter.len())
                    .unwrap_or_default();
                let step = step.get_mut(..parameter.len()).unwrap_or_default();
                block.load_parameter(0, parameter);
                gradient.load_adjusted(block.start, step);
                estimate.divide(block.start, floor, step);
                for (p, u) in parameter.iter_mut().zip(step) {
                    *p = keep * *p - size * *u;
                }
                block.store_parameter(parameter);
            }
        };
        target.lanes.share(is_shared, work);
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
    fn divide(&self, start: usize, floor: C, gradients: &mut [C]) {
        let root = |square: C| if square > floor { square } else { floor }.sqrt();
        match self {
            Self::Full(squares) => {
                let squares = squares.get(start..).unwrap_or_default();
                for (g, square) in gradients.iter_mut().zip(squares) {
                    *g /= root(*square);
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
                        *g /= root(factor * *column);
                    }
                }
            }
        }
    }
}

/// Blends a gradient's squares into the second moment of each element.
fn blend_elements<P: Stored>(
    kept: &mut [P::Real],
    gradient: Gradient<'_, P>,
    add: f64,
    is_shared: bool,
) {
    in_stretches(kept, CHUNK, is_shared, |start, kept| {
        in_blocks(0..kept.len(), |at, block| {
            gradient.load_adjusted(start + at, block);
            for (kept, g) in kept.iter_mut().skip(at).zip(block) {
                *kept = blend(*kept, g.to_f64() * g.to_f64(), add);
            }
        });
    });
}

/// Blends the mean square of each row into the rows' second moment.
fn blend_rows<P: Stored>(
    kept: &mut [P::Real],
    gradient: Gradient<'_, P>,
    columns: usize,
    add: f64,
    is_shared: bool,
) {
    let rows = (CHUNK / columns.max(1)).max(1);
    in_stretches(kept, rows, is_shared, |start, kept| {
        for (row, kept) in (start..).zip(kept) {
            let mut total = 0.;
            let row = row * columns..(row + 1) * columns;
            in_blocks(row, |start, block| {
                gradient.load_adjusted(start, block);
                total += sum_of_squares(block);
            });
            *kept = blend(*kept, total / columns as f64, add);
        }
    });
}

/// Blends the mean square of each column into the columns' second moment.
fn blend_columns<P: Stored>(
    kept: &mut [P::Real],
    gradient: Gradient<'_, P>,
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
            let (mut totals, mut block) = ([0.; BLOCK], [P::Real::default(); BLOCK]);
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
