use super::{HyperParameter, Kept, Range, Rates, Rule, hyper_parameters};
use crate::optim::cpu::{
    BLOCK, CHUNK, Column, Gradient, Real, Target, in_stretches, is_shared, squares, squares_in,
    take,
};

/// Hyper-parameters of [`Adafactor`](crate::optim::Adafactor), as in PyTorch (2.5 and later).
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
    const IS_ELEMENTWISE: bool = false;

    hyper_parameters!(
        lr: NOT_NEGATIVE, weight_decay: NOT_NEGATIVE, beta2_decay: NOT_POSITIVE, eps1: NOT_NEGATIVE,
        eps2: NOT_NEGATIVE, clip_threshold: POSITIVE
    );

    fn state(&self, dims: &[usize]) -> Vec<Kept> {
        let kept = |name, dims: &[usize]| Kept::new(name, dims);
        match dims {
            [batches @ .., rows, columns] => vec![
                kept("row_var", &[batches, &[*rows, 1]].concat()),
                kept("col_var", &[batches, &[1, *columns]].concat()),
            ],
            _ => vec![kept("variance", dims)],
        }
    }

    fn matrices(dims: &[usize]) -> usize {
        match dims {
            [batches @ .., _, _] => batches.iter().product(),
            _ => 0,
        }
    }

    fn apply<C: Real>(&self, rates: Rates, step: u64, target: Target<'_, C>) {
        let mut lanes = target.lanes;
        let (gradient, adjust) = (lanes.gradient, lanes.gradient.adjust());
        let len = lanes.parameter.len();
        let count = step as f64;
        let given = Some(self.eps1).filter(|eps1| *eps1 > 0.);
        let eps1 = given.unwrap_or(C::EPSILON);
        let add = count.powf(self.beta2_decay);

        let sum = squares(target.partials, len, &|start, block: &mut [C]| {
            lanes.load_parameter(start, block);
        });
        let mean_square = (sum / len as f64).sqrt();
        let size = mean_square.max(self.eps2) * rates.learning_rate.min(1. / count.sqrt());

        let [first, second] = std::mem::take(&mut lanes.state).map(Column::into_full);
        let one = [C::from_f64(1.)];
        let estimate = match target.dims {
            &[.., rows, columns] => {
                blend_rows(first, gradient, columns, add, len);
                blend_columns(second, gradient, [rows, columns], add, len);
                for (mean, rows) in target.scratch.iter_mut().zip(first.chunks(rows.max(1))) {
                    let total: f64 = rows.iter().map(|&row| row.to_f64()).sum();
                    *mean = (total / rows.len() as f64).max(eps1);
                }
                Estimate {
                    rows: first,
                    columns: second,
                    means: target.scratch,
                    per_mean: rows,
                }
            }
            _ => {
                blend_columns(first, gradient, [1, len], add, len);
                Estimate {
                    rows: &one,
                    columns: first,
                    means: &[1.],
                    per_mean: 1,
                }
            }
        };
        let floor = C::from_f64((eps1 * eps1).max(C::SMALLEST));

        let sum = squares(target.partials, len, &|start, block: &mut [C]| {
            gradient.load_adjusted(start, block);
            estimate.divide(start, floor, block);
        });
        let excess = sum.sqrt() / ((len as f64).sqrt() * self.clip_threshold);
        let size = C::from_f64(size / excess.max(1.));
        let keep = C::from_f64(1. - rates.learning_rate * rates.weight_decay);

        lanes.share(&|lanes| {
            lanes.in_blocks(|block, parameter, step| {
                step.iter_mut().for_each(|g| *g = adjust(*g));
                estimate.divide(block.start, floor, step);
                for (p, u) in parameter.iter_mut().zip(step) {
                    *p = keep * *p - size * *u;
                }
            });
        });
    }
}

/// The second moment of a parameter's gradient: the row's times the column's, over the mean of the matrix's rows.
struct Estimate<'a, C> {
    rows: &'a [C],
    columns: &'a [C],
    means: &'a [f64],
    per_mean: usize,
}

impl<C: Real> Estimate<'_, C> {
    /// Divides gradients, from element `start` on, by the square root of their second moment.
    fn divide(&self, mut start: usize, floor: C, mut gradients: &mut [C]) {
        let root = |square: C| if square > floor { square } else { floor }.sqrt();
        let width = self.columns.len() / self.means.len().max(1);
        while !gradients.is_empty() && width > 0 {
            let (row, column) = (start / width, start % width);
            let matrix = row / self.per_mean;
            let head = take(&mut gradients, width - column);
            start += head.len();
            let (Some(row), Some(mean)) = (self.rows.get(row), self.means.get(matrix)) else {
                return;
            };
            let factor = C::from_f64(row.to_f64() / mean);
            let columns = self.columns.get(matrix * width + column..);
            for (g, column) in head.iter_mut().zip(columns.unwrap_or_default()) {
                *g /= root(factor * *column);
            }
        }
    }
}

/// Blends the mean square of each row into the rows' second moment. `len` is the parameter's number of elements.
fn blend_rows<C: Real>(
    kept: &mut [C],
    gradient: Gradient<'_, C>,
    columns: usize,
    add: f64,
    len: usize,
) {
    let rows = (CHUNK / columns.max(1)).max(1);
    in_stretches(kept, rows, is_shared(len), &|start, kept| {
        for (row, kept) in (start..).zip(kept) {
            let total = squares_in(row * columns..(row + 1) * columns, &|start, block| {
                gradient.load_adjusted(start, block);
            });
            *kept = blend(*kept, total / columns as f64, add);
        }
    });
}

/// Blends the mean square of each column into the columns' second moment.
fn blend_columns<C: Real>(
    kept: &mut [C],
    gradient: Gradient<'_, C>,
    [rows, columns]: [usize; 2],
    add: f64,
    len: usize,
) {
    let stretch = (CHUNK / rows.max(1)).max(BLOCK);
    in_stretches(kept, stretch, is_shared(len), &|mut start, mut kept| {
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
