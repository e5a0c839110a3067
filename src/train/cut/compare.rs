use std::ops::Range;

use super::side::{Side, dot};
use crate::batch::CutFinding;
use crate::error::{CutCause, LossError, Result};

/// A difference that is larger than this multiple of the noise does not come from rounding.
const NOISE: f64 = 8.;
/// Where rounding explains more than this part of the gradients, nothing can be told.
const COARSEST: f64 = 0.25;
/// Further seeds that are tried before a loss is called wrong or too coarse: one that draws few numbers may draw equal ones from two
/// seeds, and in half types the losses of different numbers may be rounded to the same value.
const SEEDS: u64 = 8;

/// Compares the first samples together with the same samples in two parts. `run` differentiates the loss of some samples, with a seed
/// other than 0 in another way.
///
/// First all of them run with two seeds: a loss that is not the same has random numbers in it, and the parts would get others. The
/// difference of the gradients is the noise of rounding.
///
/// # Errors
/// [`LossError::DependsOnCut`], and those of `run`.
pub(in crate::train) fn compare(
    samples: usize,
    run: &mut dyn FnMut(Range<usize>, u64) -> Result<Side>,
) -> Result<CutFinding> {
    let undecided = |reason: &str| Ok(CutFinding::Undecided(reason.to_owned()));
    let (whole, again) = (run(0..samples, 0)?, run(0..samples, 1)?);
    // A 64th of the tolerance for gradients, because all operations are the same: at most their sums come in another order.
    let is_random =
        |again: &Side| (whole.loss - again.loss).abs() > whole.tolerance / 64. * whole.loss.abs();
    if is_random(&again) {
        return Ok(CutFinding::Random);
    }
    if !(whole.loss + whole.scale + again.scale).is_finite() {
        return undecided("the loss or a gradient is not finite");
    }
    // Parts of different sizes, where there are three samples: equal ones do not show that a loss has a wrong weight.
    let cut_at = ((samples - 1) / 2).max(1);
    let (first, second) = (run(0..cut_at, 0)?, run(cut_at..samples, 0)?);
    let parts = first.with(&second);
    let scale = whole.scale.max(parts.scale);
    // A part without a loss, such as the deviation of a single sample, is wrong. A gradient may overflow, since it is larger in a part.
    let is_defined = parts.loss.is_finite();
    if is_defined && !scale.is_finite() {
        return undecided("a gradient is not finite");
    }
    if scale == 0. {
        return undecided("all gradients are zero");
    }
    let allowed = whole.tolerance.max(parts.tolerance) + NOISE * whole.distance(&again) / scale;
    let difference = match is_defined {
        true => whole.distance(&parts) / scale,
        false => f64::INFINITY,
    };
    let is_too_coarse = allowed > COARSEST;
    if !is_too_coarse && difference <= allowed {
        return Ok(CutFinding::Agrees);
    }
    if !is_too_coarse && whole.changes_buffers && !is_clearly_a_sum(&whole, &first, &second) {
        return Ok(CutFinding::ChangesBuffers);
    }
    for seed in 2..2 + SEEDS {
        if is_random(&run(0..samples, seed)?) {
            return Ok(CutFinding::Random);
        }
    }
    if is_too_coarse {
        return undecided("rounding changes the gradients too much");
    }
    Err(LossError::DependsOnCut {
        samples,
        cut_at,
        whole: whole.loss,
        cut: parts.loss,
        difference,
        allowed,
        cause: match whole.changes_buffers {
            // The statistics of the parts add something to every cause.
            true => CutCause::Sum,
            false => cause(&whole, &first, &second, allowed * scale),
        },
    }
    .into())
}

/// Whether loss and gradients of all samples are about those of the parts added up, although statistics such as BatchNorm's change both.
/// Of a mean they are about the average of the parts', half as much: statistics do not double both.
fn is_clearly_a_sum(whole: &Side, first: &Side, second: &Side) -> bool {
    let is_about = |value: f64, expected: f64| (value / expected - 1.).abs() < 0.2;
    let (a, b, rest) = parts_of(whole, first, second);
    is_about(whole.loss, first.loss + second.loss) && is_about(a + b, 2.) && rest < whole.scale / 2.
}

/// By least squares, how many times the first and the second part's gradient are in that of all samples, and the norm of the rest. NaN if
/// both parts have the same direction.
fn parts_of(whole: &Side, first: &Side, second: &Side) -> (f64, f64, f64) {
    let (w, f, s) = (&whole.gradients, &first.gradients, &second.gradients);
    let (ff, fs, ss, wf, ws) = (dot(f, f), dot(f, s), dot(s, s), dot(w, f), dot(w, s));
    let determinant = ff * ss - fs * fs;
    let a = (wf * ss - ws * fs) / determinant;
    let b = (ws * ff - wf * fs) / determinant;
    let rest = (dot(w, w) - a * wf - b * ws).max(0.).sqrt();
    (a, b, rest)
}

/// What the gradient of all samples is of the parts' gradients: both times 1 for a sum, parts that add up to 1 for a mean with other
/// weights. If it is no such combination, samples affect each other.
fn cause(whole: &Side, first: &Side, second: &Side, allowed: f64) -> CutCause {
    let (a, b, rest) = parts_of(whole, first, second);
    let is = |value: f64, expected: f64| (value - expected).abs() < 0.05;
    match rest <= allowed {
        true if is(a, 1.) && is(b, 1.) => CutCause::Sum,
        true if is(a + b, 1.) => CutCause::Weights,
        _ => CutCause::Neighbours,
    }
}
