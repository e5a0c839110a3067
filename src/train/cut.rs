//! Whether a closure's loss depends on the cut: the same samples together and in two parts.

use std::ops::Range;

use candle_core::{DType, Device};

use super::loss::scalar;
use super::slots::{Contribution, Slots};
use crate::batch::{CutCheck, CutFinding, Engine, Event};
use crate::error::{CutCause, DependsOnCut, Error, Result};
use crate::memory::recover;

/// Samples of the first comparison.
pub(super) const FEW: usize = 7;
/// The second time, the loss is multiplied by this, which all types hold exactly and which rounds every intermediate result in another
/// way: the difference measures the noise of rounding and of underflow. It is about the ratio of the means over a part and the whole.
pub(super) const TIMES: f64 = 0.375;
/// Checks of a trainer until one decides: the first updates may have no gradient, or one that overflows until a loss scale is found.
const TRIES: usize = 8;

/// The checks that a trainer does by itself, at the end of a batch that was cut.
#[derive(Debug)]
pub(super) struct Checks {
    /// Samples of the next one; fewer than 2 if they did not fit.
    samples: usize,
    /// Checks that may still be undecided; none after one that decided.
    tries: usize,
}

impl Checks {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            samples: FEW,
            tries: if is_on { TRIES } else { 0 },
        }
    }

    /// The samples to check after a batch that was cut into these sizes: no more than were computed at once, but two.
    pub(super) fn due(&self, sizes: &[usize]) -> Option<usize> {
        let largest = sizes.iter().copied().max().unwrap_or_default();
        let samples = self.samples.min(largest.max(2));
        (sizes.len() > 1 && samples > 1 && self.tries > 0).then_some(samples)
    }

    /// Notes the result of a check and returns the event. What did not fit is tried again after the next cut with half the samples, and
    /// what could not be decided with as many; a loss that depends on the cut is an error each time.
    pub(super) fn note(
        &mut self,
        samples: usize,
        done: Result<CutFinding>,
        engine: &Engine,
    ) -> Result<Event> {
        let finding = match done {
            Ok(finding) => finding,
            Err(Error::ResourceExhausted(exhausted)) => {
                recover(&engine.device)?;
                self.samples = match samples {
                    0..=2 => 0,
                    more => (more / 2).max(2),
                };
                CutFinding::Undecided(exhausted.to_string())
            }
            Err(error) if is_final(&error) => return Err(error),
            // The sizes of a check are not those of micro-batches, and a closure may accept these only.
            Err(error) => {
                tracing::warn!(%error, "the closure fails on the samples of a check, so nothing is known of its cut");
                self.tries = 0;
                CutFinding::Undecided(error.to_string())
            }
        };
        self.tries = match finding {
            CutFinding::Undecided(_) => self.tries.saturating_sub(1),
            _ => 0,
        };
        let check = CutCheck::new(samples, finding);
        match check.is_warning() {
            true => tracing::warn!("{check}"),
            false => tracing::info!("{check}"),
        }
        Ok(Event::CutChecked(check))
    }
}

/// Whether a check ends the step: what it found, a lost device, or calls of a group, which come out of step with the other ranks'.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::DependsOnCut(_) | Error::DeviceFault(_)) || error.is_group()
}

/// Whether so many samples should fit, if fewer were ever computed at once.
pub(super) fn may_fit(engine: &Engine, samples: usize) -> bool {
    let (Some(memory), Some((size, bytes))) = (&engine.memory, engine.measured) else {
        return true;
    };
    let need = (bytes / size.max(1) as u64).saturating_mul(samples as u64);
    size >= samples || memory.would_fit(need) != Some(false)
}

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
/// [`DependsOnCut`], and those of `run`.
pub(super) fn compare(
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
    Err(DependsOnCut {
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

/// Elements of all gradients together that are compared: a wrong loss shows in all of them, and these need little memory.
const ELEMENTS: usize = 1 << 16;

/// What some samples would add to an update.
#[derive(Debug)]
pub(super) struct Side {
    /// The mean, as the gradients.
    loss: f64,
    weight: f64,
    /// The first elements of each parameter's gradient, zeros if it has none.
    pub(super) gradients: Vec<f64>,
    /// The gradients' norm. Of a sum it is the sum of norms: what rounding errors are a part of, even if gradients cancel out.
    pub(super) scale: f64,
    /// The largest difference, as a part of the norm, that the roundings of the types explain.
    pub(super) tolerance: f64,
    pub(super) changes_buffers: bool,
}

impl Side {
    /// Reads the gradients of a loss that was multiplied by `times`.
    pub(super) fn new(
        (loss, gradients): &Contribution,
        slots: &Slots,
        times: f64,
        changes_buffers: bool,
    ) -> Result<Self> {
        let each = (ELEMENTS / slots.slots.len().max(1)).max(1);
        let mut tolerance = tolerance(loss.value.dtype());
        // A loss of weight 0 has no gradients, and may be NaN.
        let (mut part, mut mean) = (0., 0.);
        if loss.weight > 0. {
            part = loss.factor / loss.weight;
            mean = part * scalar(&loss.value)?;
        }
        let mut all = Vec::new();
        for (index, var) in slots.vars().enumerate() {
            let len = var.elem_count().min(each);
            let Some(Some(gradient)) = gradients.get(index) else {
                all.resize(all.len() + len, 0.);
                continue;
            };
            tolerance = tolerance.max(self::tolerance(gradient.dtype()));
            // A copy of these elements, since moving a view to the host moves all of its tensor.
            let first = gradient.flatten_all()?.narrow(0, 0, len)?;
            let first = first.force_contiguous()?.to_device(&Device::Cpu)?;
            let first = first.to_dtype(DType::F64)?.to_vec1::<f64>()?;
            all.extend(first.into_iter().map(|value| part * value / times));
        }
        Ok(Self {
            loss: mean,
            weight: loss.weight,
            scale: dot(&all, &all).sqrt(),
            gradients: all,
            tolerance,
            changes_buffers,
        })
    }

    /// The weighted mean of two.
    pub(super) fn with(&self, other: &Self) -> Self {
        let weight = self.weight + other.weight;
        let part = if weight > 0. {
            self.weight / weight
        } else {
            0.
        };
        let mean = |a: f64, b: f64| part * a + (1. - part) * b;
        let pairs = self.gradients.iter().zip(&other.gradients);
        Self {
            loss: mean(self.loss, other.loss),
            weight,
            gradients: pairs.map(|(a, b)| mean(*a, *b)).collect(),
            scale: mean(self.scale, other.scale),
            tolerance: self.tolerance.max(other.tolerance),
            changes_buffers: self.changes_buffers,
        }
    }

    /// The norm of the difference of the gradients.
    pub(super) fn distance(&self, other: &Self) -> f64 {
        let pairs = self.gradients.iter().zip(&other.gradients);
        pairs.map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// How far gradients of this type may be apart, as a part of their norm.
///
/// One rounding is off by at most u: 2^-53, 2^-24, 2^-11 and 2^-8. A batch of another size sums in another order and by other kernels,
/// and the layers between the loss and a parameter multiply what these roundings change, by some hundreds in deep models. So for f32 it
/// is 2^14 u. f64 has more, because a model may hold f64 parameters and compute in f32. Half types sum in f32 and round each result
/// once, so that the errors of the elements are independent and add up as their squares do: 16 u (f16) and 8 u (bf16). A wrong loss is
/// off by some percent at least. What the types of the parameters do not show, such as a model in f32 that computes in bf16, is
/// measured and comes on top.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-20),
        DType::F16 => 2f64.powi(-7),
        DType::BF16 => 2f64.powi(-5),
        _ => 2f64.powi(-10),
    }
}
