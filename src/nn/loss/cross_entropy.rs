use candle_core::{D, DType, Result, Shape, Tensor, bail};
use num_traits::{Float, One, Zero};
use rayon::prelude::*;

use super::Targets;
use crate::nn::graph::{Backward, record};
use crate::nn::kernel::{
    self, Element, Functions, Kernel, by_rows, max_of, rows_at_once, slice_of, sum_of,
};
use crate::nn::recompute::note_logits;

/// Cross-entropy of logits (N, C) and classes (N), averaged over the N rows: as [`candle_nn::loss::cross_entropy`], in one operation.
///
/// Targets are u8, u32 or i64. A row whose target is the largest value of its type, for example `u32::MAX`, adds nothing to the sum
/// and gets no gradient, but counts in N, as with candle. The sums of f16 and bf16 are computed in f32.
///
/// It keeps the logarithm of each row's sum of e^(x − max): N numbers, f64 for f64 and f32 for all others. The graph also holds the
/// logits and the targets.
///
/// # Errors
/// If the shapes do not match, or on the CPU if a target is not below C; the message names the row. On CUDA a target out of range is
/// found without waiting for the device: the loss is NaN, and so is the gradient of that row.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let &[rows, width] = logits.dims() else {
        bail!(
            "cross_entropy expects logits of rank 2, got {:?}",
            logits.shape()
        );
    };
    let targets = Targets::new(targets, rows, logits.device())?;
    if logits.track_op() {
        note_logits(logits);
    }
    if logits.elem_count() == 0 {
        bail!("cross_entropy of no logits, got {:?}", logits.shape());
    }
    let forward = CrossEntropy {
        width,
        targets: targets.clone(),
    };
    let [losses, logs] = kernel::run(&forward, [logits])?;
    let loss = losses.mean_all()?.to_dtype(logits.dtype())?;
    let backward = move |given: Backward<1>| {
        let backward = CrossEntropyBackward {
            width,
            targets: targets.clone(),
            logs: logs.clone(),
        };
        let [logits] = &given.inputs;
        let [gradient] = kernel::run(&backward, [logits, &given.gradient])?;
        Ok([Some(gradient)])
    };
    record("cross-entropy", [logits], loss, backward)
}

/// For each row log Σ e^x − x[target], and log Σ e^(x − max).
pub struct CrossEntropy {
    pub width: usize,
    pub targets: Targets,
}

impl Kernel<1, 2> for CrossEntropy {
    const NAME: &'static str = "cross_entropy";

    type Output<T: Element> = T::Sum;

    fn shapes(&self, [xs]: [&Tensor; 1]) -> Result<[Shape; 2]> {
        let rows = Shape::from(xs.elem_count() / self.width.max(1));
        Ok([rows.clone(), rows])
    }

    fn cpu<T: Element>(&self, [xs]: [&[T]; 1], [losses, logs]: [&mut [T::Sum]; 2]) -> Result<()> {
        let classes = self.targets.classes(self.width)?;
        let rows = rows_at_once(self.width);
        let groups = (losses.par_chunks_mut(rows), logs.par_chunks_mut(rows));
        let groups = groups.into_par_iter();
        let given = xs
            .par_chunks(rows * self.width)
            .zip(classes.par_chunks(rows));
        groups
            .zip(given)
            .for_each(|((losses, logs), (xs, classes))| {
                let rows = xs.chunks(self.width).zip(classes);
                for ((loss, log), (x, class)) in losses.iter_mut().zip(logs).zip(rows) {
                    let max = max_of(x);
                    let sum = sum_of(x, x, |x, _| (x - max).fast_exp()).ln();
                    *log = sum;
                    if let Some(x) = class.and_then(|class| x.get(class)) {
                        *loss = sum - (x.widen() - max);
                    }
                }
            });
        Ok(())
    }

    fn composed(&self, [xs]: [&Tensor; 1]) -> Result<[Tensor; 2]> {
        let xs = wide(xs)?;
        let xs = below_max(&xs)?;
        let logs = xs.exp()?.sum_keepdim(D::Minus1)?.log()?;
        let logits = xs.broadcast_sub(&logs)?;
        let targets = self.targets.tensor().unsqueeze(1)?;
        let losses = logits.gather(&targets, 1)?.squeeze(1)?.neg()?;
        Ok([losses, logs.squeeze(1)?])
    }
}

fn wide(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.to_dtype(DType::F32),
        _ => Ok(tensor.clone()),
    }
}

fn below_max(xs: &Tensor) -> Result<Tensor> {
    xs.broadcast_sub(&xs.max_keepdim(D::Minus1)?)
}

/// (e^(x − max − log Σ e^(x − max)) − onehot) · gradient / N, with the gradient of the mean. The maximum is found again: added to the
/// logarithm, a large one would take its digits.
pub struct CrossEntropyBackward {
    pub width: usize,
    pub targets: Targets,
    pub logs: Tensor,
}

impl Kernel<2, 1> for CrossEntropyBackward {
    const NAME: &'static str = "cross_entropy_backward";

    type Output<T: Element> = T;

    fn shapes(&self, [xs, _]: [&Tensor; 2]) -> Result<[Shape; 1]> {
        Ok([xs.shape().clone()])
    }

    fn cpu<T: Element>(&self, [xs, gradient]: [&[T]; 2], [dxs]: [&mut [T]; 1]) -> Result<()> {
        let width = self.width;
        let classes = self.targets.classes(width)?;
        let (storage, layout) = self.logs.storage_and_layout();
        let logs = slice_of::<T::Sum>(&storage, layout, Self::NAME)?;
        let gradient = gradient
            .first()
            .map_or(T::Sum::zero(), |first| first.widen());
        let scale = gradient / T::Sum::of(logs.len() as f64);
        by_rows(dxs, width, |first, dxs| {
            let known = logs.iter().skip(first).zip(classes.iter().skip(first));
            let rows = xs.chunks(width).skip(first).zip(known);
            for (dx, (x, (log, class))) in dxs.chunks_mut(width).zip(rows) {
                let Some(class) = *class else {
                    continue;
                };
                let max = max_of(x);
                let softmax = |x: &T| ((x.widen() - max) - *log).fast_exp();
                for (dx, x) in dx.iter_mut().zip(x) {
                    *dx = T::narrow(softmax(x) * scale);
                }
                if let (Some(dx), Some(x)) = (dx.get_mut(class), x.get(class)) {
                    *dx = T::narrow((softmax(x) - T::Sum::one()) * scale);
                }
            }
        });
        Ok(())
    }

    fn composed(&self, [xs, gradient]: [&Tensor; 2]) -> Result<[Tensor; 1]> {
        let (classes, none) = self.targets.numbers()?;
        let logs = self.logs.unsqueeze(1)?;
        let counted = classes.ne(none)?.to_dtype(logs.dtype())?.unsqueeze(1)?;
        let softmax = below_max(&wide(xs)?)?.broadcast_sub(&logs)?.exp()?;
        let targets = self.targets.tensor().unsqueeze(1)?;
        let differences = softmax.scatter_add(&targets, &counted.neg()?, 1)?;
        let scale = (wide(gradient)?.reshape((1, 1))? / classes.elem_count() as f64)?;
        let gradient = differences.broadcast_mul(&counted.broadcast_mul(&scale)?)?;
        Ok([gradient.to_dtype(xs.dtype())?])
    }
}
